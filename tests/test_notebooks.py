"""The lessons: what each promises is there, and nbval (which runs them, see conftest.py) can fail."""

import re
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
InteractiveShell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
NotebookNode, v4 = nbformat.NotebookNode, nbformat.v4
pytestmark = pytest.mark.notebook

ROOT = Path(__file__).parent.parent
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECTIONS = ["The idea in one figure", "Exercises", "What the paper says, what we see", "References"]

each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)


def code_cells(lesson: Path) -> list[NotebookNode]:
    return [cell for cell in nbformat.read(lesson, as_version=4).cells if cell.cell_type == "code"]


def prose(lesson: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(lesson, as_version=4).cells if cell.cell_type == "markdown"]


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def figure_count(cell: NotebookNode) -> int:
    return sum(kind in output.get("data", {}) for output in cell.outputs for kind in ("image/png", "image/jpeg"))


def test_there_are_nine_lessons_and_the_syllabus_lists_them_with_their_titles_and_minutes() -> None:
    syllabus = (ROOT / "notebooks" / "README.md").read_text()
    listed = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| .+ \| (\d+) \|$", syllabus, re.MULTILINE)
    opened = [
        (re.match(r"# (.+)", prose(lesson)[0])[1], lesson.name, re.search(r"\*\*Time\*\*: (\d+)", prose(lesson)[0])[1])
        for lesson in LESSONS
    ]
    assert len(opened) == 9
    assert listed == opened


@each_lesson
def test_a_lesson_says_first_what_one_learns_how_long_it_takes_and_what_one_needs(lesson: Path) -> None:
    for promise in ("**You will learn**", "**Time**: ", "**You need**: "):
        assert promise in prose(lesson)[0]


@each_lesson
def test_a_lesson_goes_from_one_figure_to_exercises_paper_and_references(lesson: Path) -> None:
    titles = [title for text in prose(lesson) for title in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    assert [title for title in titles if title in SECTIONS] == SECTIONS
    assert SECTIONS[0] in titles[:2]
    assert any(figure_count(cell) for cell in code_cells(lesson)[:6])  # install, imports, what the figure is of
    assert "| the paper | here |" in prose(lesson)[-1] or "| the paper | here |" in prose(lesson)[-2]
    assert "arXiv:2210.02206" in prose(lesson)[-1]


@each_lesson
def test_each_exercise_has_a_hint_a_cell_to_fill_and_a_folded_solution_that_checks_itself(lesson: Path) -> None:
    exercises = [text for text in prose(lesson) if re.search(r"^\*\*\d\.\*\* ", text, re.MULTILINE)]
    assert 2 <= len(exercises) <= 4
    assert all("<details><summary>Hint</summary>" in exercise for exercise in exercises)
    cells = code_cells(lesson)
    asked = [number for number, cell in enumerate(cells) if "exercise" in tags(cell)]
    assert len(asked) == len(exercises)
    for number in asked:
        solution = cells[number + 1]
        assert "solution" in tags(solution)
        assert solution.metadata.jupyter == {"source_hidden": True, "outputs_hidden": True}
        assert solution.source.startswith("# Solution\n")  # JupyterLab shows the first line of a folded cell
        assert "assert " in solution.source


@each_lesson
def test_a_lesson_was_run_from_top_to_bottom_without_a_word_of_warning(lesson: Path) -> None:
    cells = code_cells(lesson)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert all(output.output_type != "error" and output.get("name") != "stderr" for output in cell.outputs)


@each_lesson
def test_a_lesson_took_less_than_90_seconds_when_its_outputs_were_made(lesson: Path) -> None:
    cells = code_cells(lesson)  # `jupyter nbconvert --execute` notes the time of each cell
    start, end = cells[0].metadata.execution["iopub.execute_input"], cells[-1].metadata.execution["shell.execute_reply"]
    assert (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() < 90


@each_lesson
def test_beside_a_widget_there_is_a_figure_that_needs_none(lesson: Path) -> None:
    cells = code_cells(lesson)
    for number, cell in enumerate(cells):
        if any("application/vnd.jupyter.widget-view+json" in output.get("data", {}) for output in cell.outputs):
            assert figure_count(cells[number - 1]) or figure_count(cells[number + 1])


def test_all_lessons_begin_with_the_same_install_cell() -> None:
    assert len({code_cells(lesson)[0].source for lesson in LESSONS}) == 1
    assert all("setup" in tags(code_cells(lesson)[0]) for lesson in LESSONS)


def test_the_install_cell_does_nothing_where_the_package_is_and_elsewhere_asks_for_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell, installed = InteractiveShell(), []
    shell.register_magic_function(installed.append, magic_name="pip")
    cell = code_cells(LESSONS[0])[0].source
    shell.run_cell(cell).raise_error()
    assert installed == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="REPOSITORY"):
        shell.run_cell(cell).raise_error()
    shell.run_cell(cell.replace('REPOSITORY = ""', 'REPOSITORY = "https://host/vse_demo"')).raise_error()
    assert installed == ['install --quiet "vse_demo[notebooks] @ git+https://host/vse_demo"']


def test_the_site_has_every_lesson_and_needs_neither_network_nor_script(tmp_path: Path, start_python: Callable) -> None:
    errors = start_python(ROOT / "scripts" / "make_site.py", "--out", tmp_path).communicate(timeout=120)[1]
    pages = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(pages) == {"index.html", *(f"{lesson.stem}.html" for lesson in LESSONS)}, errors
    for lesson in LESSONS:
        assert f'href="{lesson.stem}.html"' in pages["index.html"]
        page = pages[f"{lesson.stem}.html"]
        assert page.count('<details class="solution">') == sum("solution" in tags(cell) for cell in code_cells(lesson))
        assert page.count("<img ") == sum(map(figure_count, code_cells(lesson)))
        assert ("<math" in page) == any("$" in re.sub("`[^`]*`", "", text) for text in prose(lesson))
    for page in pages.values():
        assert not re.findall(r"<script|<link|src=[\"']http|@import|interactive\(children|\.ipynb\"|\$\$", page)


def test_nbval_fails_on_another_text_another_figure_and_one_that_is_missing(
    tmp_path: Path, start_python: Callable
) -> None:
    drawn = "from PIL import Image\nImage.new('RGB', (64, 48), '{}')"
    shutil.copy(ROOT / "conftest.py", tmp_path)
    cells = {  # what a cell does when it is stored, and when it is tested
        "same text": ("print(1)", "print(1)"),
        "other text": ("print(1)", "print(2)"),
        "same figure": (drawn.format("red"), drawn.format("#FA0505")),
        "other figure": (drawn.format("red"), drawn.format("blue")),
        "other size": (drawn.format("red"), drawn.format("red").replace("48", "88")),
        "no figure": (drawn.format("red"), "None"),
    }
    notebook = tmp_path / "made.ipynb"
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell(stored) for stored, _ in cells.values()]), notebook)
    execution = start_python("-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", notebook)
    execution.communicate(timeout=60)
    made = nbformat.read(notebook, as_version=4)
    for cell, (_, tested) in zip(made.cells, cells.values(), strict=True):
        cell.source = tested
    nbformat.write(made, notebook)
    settings = "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path
    run = start_python("-m", "pytest", *settings, "-rA", "--color=no", "-p", "no:cacheprovider", notebook)
    report = run.communicate(timeout=60)[0]
    outcomes = [
        name
        for name, _ in sorted(re.findall(r"^(PASSED|FAILED) .*Cell (\d)", report, re.MULTILINE), key=lambda x: x[1])
    ]
    assert outcomes == ["PASSED", "FAILED", "PASSED", "FAILED", "FAILED", "FAILED"]
