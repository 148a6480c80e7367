"""From one source per lesson, two notebooks: the teacher's and the student's.

    python scripts/make_notebooks.py                  # both, of every lesson; what was stored stays stored
    python scripts/make_notebooks.py 03 05 --execute  # run these from top to bottom and store their outputs

A source is `notebooks/source/NN_name.py`, in jupytext's percent format. The teacher's notebook,
`notebooks/NN_name.ipynb`, has all of it, executed. The student's, `notebooks/student/NN_name.ipynb`, has no solutions
and no outputs, so that nobody reads an answer below a question. A test holds both to the source.

Tags of cells that mean something here: `exercise` (a skeleton), `check` (looks at the answer), `solution` (left out for
students, folded for teachers), `drawing` (folded: how a figure is drawn, not what it is about), `teacher` (a note that
students do not get). nbval knows `nbval-ignore-output`, conftest.py `figure-varies`.
"""

import argparse
import re
import resource
from collections.abc import Iterable
from pathlib import Path

import jupytext
import nbformat
from jupytext.combine import combine_inputs_with_outputs
from nbconvert.preprocessors import (
    ClearOutputPreprocessor,
    CoalesceStreamsPreprocessor,
    ExecutePreprocessor,
    TagRemovePreprocessor,
)
from nbformat import NotebookNode, v4

from vse_demo.utils.files import write_atomic

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
FOR_TEACHERS = ("solution", "teacher")  # tags of what a student's notebook leaves out
FOLDED = {
    "solution": {"outputs_hidden": True, "source_hidden": True},
    "drawing": {"source_hidden": True},
    "setup": {"source_hidden": True},
}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SETUP = """\
# Where the package is installed, this cell does nothing. On Colab, say where the package comes from, then run it.
import importlib.util

REPOSITORY = ""  # the address that you got this notebook from, such as "https://github.com/SOMEONE/vse_demo"
if importlib.util.find_spec("vse_demo") is None:
    if not REPOSITORY:
        raise ModuleNotFoundError("vse_demo is not installed: put its address into REPOSITORY above and run again")
    %pip install --quiet "vse_demo[notebooks] @ git+{REPOSITORY}"
"""


def sources() -> list[Path]:
    """The sources of all lessons, in their order."""
    return sorted((NOTEBOOKS / "source").glob("[0-9]*.py"))


def read_source(path: Path) -> NotebookNode:
    """The notebook that a source describes, without outputs: the cell that installs follows the opening words."""
    notebook = jupytext.read(path, fmt="py:percent")
    setup = v4.new_code_cell(SETUP.strip(), metadata={"tags": ["setup"]})
    cells = [notebook.cells[0], setup, *notebook.cells[1:]]
    for number, cell in enumerate(cells):
        tags = cell.metadata.get("tags", [])
        folded = [FOLDED[tag] for tag in tags if tag in FOLDED]
        cell.id = f"cell-{number}"
        cell.metadata = {**({"tags": tags} if tags else {}), **({"jupyter": dict(folded[0])} if folded else {})}
    return v4.new_notebook(cells=cells, metadata=METADATA)


def teachers(source: NotebookNode, stored: NotebookNode | None) -> NotebookNode:
    """Everything, with the outputs that were stored for cells that are still the same."""
    if stored is None:
        return source
    made = combine_inputs_with_outputs(source, stored)
    for number, (cell, wanted) in enumerate(zip(made.cells, source.cells, strict=True)):
        kept = {key: value for key, value in cell.metadata.items() if key == "execution"}
        cell.id, cell.metadata = f"cell-{number}", {**wanted.metadata, **kept}
    return v4.new_notebook(cells=made.cells, metadata={**METADATA, **_kept(stored)})


def students(source: NotebookNode) -> NotebookNode:
    """What is to be filled in, nothing that gives it away; links lead out of the folder `student`."""
    made, _ = TagRemovePreprocessor(remove_cell_tags=set(FOR_TEACHERS)).preprocess(source.copy(), {})
    made, _ = ClearOutputPreprocessor().preprocess(made, {})
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace("](../", "](../../")
    return made


def execute(notebook: NotebookNode) -> NotebookNode:
    """Run from top to bottom, in the folder of the lessons, as nbval does; note how long the processor worked."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    runner = ExecutePreprocessor(timeout=600, kernel_name="python3")
    before = _seconds_of_children()
    made, _ = runner.preprocess(notebook, {"metadata": {"path": str(NOTEBOOKS)}})
    made, _ = CoalesceStreamsPreprocessor().preprocess(made, {})  # where a kernel flushes is chance
    seconds = {"cpu_seconds": round(_seconds_of_children() - before, 1)}
    return v4.new_notebook(cells=made.cells, metadata={**METADATA, **_kept(made), **seconds})


def _seconds_of_children() -> float:
    """Of processor time, in kernels that have ended; unlike the clock it does not count what others do meanwhile."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _kept(notebook: NotebookNode) -> dict:
    """What a run has left in a notebook's metadata."""
    return {key: value for key, value in notebook.metadata.items() if key in ("widgets", "cpu_seconds")}


def make(path: Path, run: bool = False) -> list[Path]:
    """Write the two notebooks of a source; returns their paths."""
    teacher, student = NOTEBOOKS / f"{path.stem}.ipynb", NOTEBOOKS / "student" / f"{path.stem}.ipynb"
    stored = nbformat.read(teacher, as_version=4) if teacher.exists() else None
    full = teachers(read_source(path), stored)
    write_atomic(teacher, nbformat.writes(execute(full) if run else full) + "\n")
    write_atomic(student, nbformat.writes(students(read_source(path))) + "\n")
    return [teacher, student]


def chosen(names: Iterable[str]) -> list[Path]:
    """The sources whose names begin like one of these; all, where there are none."""
    names = tuple(re.sub(r"\.(py|ipynb)$", "", Path(name).name) for name in names)
    found = [path for path in sources() if not names or path.stem.startswith(names)]
    if not found:
        raise SystemExit(f"no lesson begins with {', '.join(names)}; there are {', '.join(p.stem for p in sources())}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the teacher's and the student's notebooks from their sources.")
    parser.add_argument("lessons", nargs="*", help="how their names begin, such as 03; all if left out")
    parser.add_argument("--execute", action="store_true", help="run the teacher's notebooks and store their outputs")
    options = parser.parse_args()
    for path in chosen(options.lessons):
        print(*make(path, options.execute))


if __name__ == "__main__":
    main()
