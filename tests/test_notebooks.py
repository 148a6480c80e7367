"""The lessons: what each promises is there, and nbval (which runs them, see conftest.py) can fail."""

import re
import shutil
import sys
from collections.abc import Callable
from html import unescape
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from support import HANGS

from vse_demo.teaching.guesses import ANSWERS
from vse_demo.utils.paths import shipped

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jupytext")
InteractiveShell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
NotebookNode, v4 = nbformat.NotebookNode, nbformat.v4
pytestmark = pytest.mark.notebook

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import make_notebooks  # noqa: E402
import make_site  # noqa: E402

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECTIONS = ["The idea in one figure", "Exercises", "What the paper says, what we see", "References"]

BELOW_THE_BAR = """place => document.getElementById(place).getBoundingClientRect().top
    >= document.querySelector('.top').getBoundingClientRect().bottom"""
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)


def code_cells(lesson: Path) -> list[NotebookNode]:
    return [cell for cell in nbformat.read(lesson, as_version=4).cells if cell.cell_type == "code"]


def prose(lesson: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(lesson, as_version=4).cells if cell.cell_type == "markdown"]


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def last_text(cell: NotebookNode) -> str:
    """What the last expression of a cell shows."""
    return cell.outputs[-1].data["text/plain"]


def figure_count(cell: NotebookNode) -> int:
    return sum(kind in output.get("data", {}) for output in cell.outputs for kind in ("image/png", "image/jpeg"))


def slider_count(cell: NotebookNode) -> int:
    return sum('<figure id="sliders-' in output.get("data", {}).get("text/html", "") for output in cell.outputs)


def test_there_are_eleven_lessons_and_the_syllabus_lists_them_with_their_titles_and_minutes() -> None:
    syllabus = (ROOT / "notebooks" / "README.md").read_text()
    listed = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| .+ \| (\d+) \|$", syllabus, re.MULTILINE)
    opened = [
        (re.match(r"# (.+)", prose(lesson)[0])[1], lesson.name, re.search(r"\*\*Time\*\*: (\d+)", prose(lesson)[0])[1])
        for lesson in LESSONS
    ]
    assert len(opened) == 11
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
def test_each_exercise_has_a_hint_a_cell_to_fill_a_check_and_a_folded_solution_that_passes_it(lesson: Path) -> None:
    exercises = [text for text in prose(lesson) if re.search(r"^\*\*\d\.\*\* ", text, re.MULTILINE)]
    assert 2 <= len(exercises) <= 4
    assert all("<details><summary>Hint</summary>" in exercise for exercise in exercises)
    cells = code_cells(lesson)
    asked = [number for number, cell in enumerate(cells) if "exercise" in tags(cell)]
    assert len(asked) == len(exercises)
    for order, number in enumerate(asked, 1):
        skeleton, checked, solution = cells[number : number + 3]
        assert "..." in skeleton.source
        assert "check" in tags(checked)
        assert re.match(rf'check\(\s*"{int(lesson.stem[:2])}\.{order}",', checked.source)
        assert last_text(checked).startswith("○ ")  # a skeleton is not an answer
        assert "solution" in tags(solution)
        assert solution.metadata.jupyter == {"source_hidden": True, "outputs_hidden": True}
        assert solution.source.startswith("# Solution\n")  # JupyterLab shows the first line of a folded cell
        assert solution.source.endswith(checked.source)
        assert last_text(solution).startswith("✓ ")


@each_lesson
def test_where_sections_have_a_level_exercises_have_one_too(lesson: Path) -> None:
    text = "\n\n".join(prose(lesson))
    if "*Level: deeper.*" in text:
        assert all(
            re.match(r"\*Level: (core|deeper)\b", asked) for asked in re.findall(r"^\*\*\d\.\*\* (.+)", text, re.M)
        )


@each_lesson
def test_a_lesson_asks_for_guesses_and_ends_with_five_questions(lesson: Path) -> None:
    cells = code_cells(lesson)
    guesses = [number for number, cell in enumerate(cells) if "guess" in tags(cell)]
    assert len(guesses) >= 2
    for number in guesses:
        assert re.match(r"my_guess = \.\.\.  # ", cells[number].source)
        following = next(cell for cell in cells[number + 1 :] if "reveal(" in cell.source)
        assert last_text(following).startswith("○ It is ")
    assert cells[-1].source == f'quiz("{lesson.stem}")'
    assert last_text(cells[-1]).startswith("1. ")


@each_lesson
def test_a_lesson_was_run_from_top_to_bottom_without_a_word_of_warning(lesson: Path) -> None:
    cells = code_cells(lesson)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert all(output.output_type != "error" and output.get("name") != "stderr" for output in cell.outputs)


@each_lesson
def test_what_a_cell_prints_is_one_text(lesson: Path) -> None:
    for cell in code_cells(lesson):
        assert sum(output.get("name") == "stdout" for output in cell.outputs) <= 1


def test_what_a_kernel_prints_in_pieces_is_stored_as_one_text() -> None:
    code = "import sys\nfor n in range(3):\n    print(n)\n    sys.stdout.flush()"
    made = make_notebooks.execute(v4.new_notebook(cells=[v4.new_code_cell(code)]))
    assert [output.text for output in made.cells[0].outputs] == ["0\n1\n2\n"]


@each_lesson
def test_a_lesson_needs_less_than_90_seconds_of_a_processor(lesson: Path) -> None:
    notebook = nbformat.read(lesson, as_version=4)  # scripts/make_notebooks.py --execute notes it
    assert notebook.metadata["cpu_seconds"] < 90


@each_lesson
def test_beside_a_widget_there_is_a_figure_that_needs_none(lesson: Path) -> None:
    cells = code_cells(lesson)
    for number, cell in enumerate(cells):
        if any("application/vnd.jupyter.widget-view+json" in output.get("data", {}) for output in cell.outputs):
            assert figure_count(cells[number - 1]) or figure_count(cells[number + 1])


def test_both_notebooks_of_a_lesson_say_what_its_source_says() -> None:
    assert [path.stem for path in make_notebooks.sources()] == [lesson.stem for lesson in LESSONS]
    for source, lesson in zip(make_notebooks.sources(), LESSONS, strict=True):
        full = make_notebooks.read_source(source)
        student = make_notebooks.students(make_notebooks.read_source(source))
        pairs = (lesson, full), (lesson.parent / "student" / lesson.name, student)
        for path, expected in pairs:
            stored = nbformat.read(path, as_version=4)
            advice = f"{path.name} is not what {source.name} says: run scripts/make_notebooks.py"
            assert [(cell.cell_type, cell.source, tags(cell)) for cell in stored.cells] == [
                (cell.cell_type, cell.source, tags(cell)) for cell in expected.cells
            ], advice


@each_lesson
def test_a_students_notebook_has_neither_solution_nor_output(lesson: Path) -> None:
    cells = code_cells(lesson.parent / "student" / lesson.name)
    assert sum("exercise" in tags(cell) for cell in cells) == sum(
        "exercise" in tags(cell) for cell in code_cells(lesson)
    )
    assert not any("solution" in tags(cell) or cell.outputs or cell.execution_count for cell in cells)


@each_lesson
def test_no_cell_of_a_student_says_what_is_to_be_guessed(lesson: Path) -> None:
    cells = code_cells(lesson.parent / "student" / lesson.name)
    revealed = [re.search(r"\breveal\(\s*([^,]+),", cell.source) for cell in cells]
    seen = [found[1] for found in revealed if found]
    assert len(seen) == sum("guess" in tags(cell) for cell in cells)
    for number, shown in enumerate(seen, 1):  # computed, or looked up by its name
        assert shown in ("seen", f'"{int(lesson.stem[:2])}.{number}"')


def test_every_answer_to_a_guess_is_asked_for_in_a_lesson() -> None:
    code = "\n".join(cell.source for lesson in LESSONS for cell in code_cells(lesson))
    assert sorted(ANSWERS) == sorted(re.findall(r'\breveal\("([^"]+)"', code))


@pytest.mark.parametrize("folder", [".", "student"])
def test_the_lesson_on_a_million_pictures_finds_its_database_server(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = code_cells(ROOT / "notebooks" / folder / "11_million.ipynb")
    monkeypatch.chdir(ROOT / "notebooks" / folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path).resolve() not in (ROOT, Path.cwd())])
    monkeypatch.delitem(sys.modules, "benchmarks.postgres_server", raising=False)
    monkeypatch.delitem(sys.modules, "benchmarks", raising=False)
    exec(next(cell.source for cell in cells if cell.source.startswith("sys.path")), {"sys": sys, "shipped": shipped})
    assert import_module("benchmarks.postgres_server").postgres_server


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of the site, by file name."""
    out = tmp_path_factory.mktemp("site")
    made = make_site.make_site(out)
    assert {path for path in out.rglob("*") if path.is_file()} == set(made)
    return {path.name: path.read_text() for path in made if path.suffix == ".html"}


def test_the_site_has_every_lesson_and_needs_neither_network_nor_script(site: dict[str, str]) -> None:
    names = [lesson.stem for lesson in LESSONS]
    assert {"index.html", "search.html", "glossary.html", "teachers.html"} <= set(site)
    assert {f"{start}{name}.html" for name in names for start in ("", "slides_")} <= set(site)
    for lesson in LESSONS:
        assert f'href="{lesson.stem}.html"' in site["index.html"]
        page = site[f"{lesson.stem}.html"]
        assert page.count('<details class="fold solution">') == sum("solution" in tags(c) for c in code_cells(lesson))
        assert page.count("<img ") == sum(figure_count(cell) + slider_count(cell) for cell in code_cells(lesson))
        assert page.count("✓ Right.</b>") == 5  # the questions
        assert ("<math" in page) == any("$" in re.sub("`[^`]*`", "", text) for text in prose(lesson))
    for name, page in site.items():
        assert not re.findall(r"<link|src=[\"']http|@import|interactive\(children|\$\$", page), name
        assert ("<script" in page) == (name == "search.html" or '<figure id="sliders-' in page), name


def test_every_link_of_the_site_leads_to_a_page_and_a_place_that_are_there(site: dict[str, str]) -> None:
    places = {name: set(re.findall(r'id="([^"]+)"', page)) for name, page in site.items()}
    for name, page in site.items():
        for target in re.findall(r'<a [^>]*?href="([^"]+)"', page):
            if re.match(r"https?:", target):
                continue
            file, _, part = unescape(target).partition("#")
            if file in {f"student/{lesson.name}" for lesson in LESSONS}:
                continue
            assert (file or name) in site, (name, target)
            assert not part or {part, unquote(part)} & places[file or name], (name, target)  # as browsers look for it


def test_formulas_are_whole(site: dict[str, str]) -> None:
    for name, page in site.items():
        assert not re.findall(r"<math[^>]*>\s*</math>", page), name
    assert re.search(r"<mfrac><mrow>.+?</mrow><mrow>.+?</mrow></mfrac>", site["05_adopt.html"])


@each_lesson
def test_slides_ask_for_a_guess_before_they_show_the_figure_that_answers_it(lesson: Path, site: dict[str, str]) -> None:
    screens = re.findall(r"<section>(.+?)</section>", site[f"slides_{lesson.stem}.html"])
    assert not any("Guess first" in screen and "<img" in screen for screen in screens)
    cells, expected, asked = nbformat.read(lesson, as_version=4).cells, list[bool](), False
    for cell in cells:  # whether a screen asks, in their order
        if "guess" in tags(cell):
            asked = True
        elif cell.cell_type == "code" and "solution" not in tags(cell):
            expected += [True] * (asked and figure_count(cell) > 0) + [False] * figure_count(cell)
            asked &= not figure_count(cell) and "reveal(" not in cell.source
    assert ["Guess first" in screen for screen in screens[1:]] == expected


def test_readers_of_the_site_can_take_the_students_notebooks_and_are_not_told_that_they_did_not_guess(
    site: dict[str, str],
) -> None:
    for lesson in LESSONS:
        for page in ("index.html", lesson.with_suffix(".html").name, f"lesson_{lesson.stem[:2]}.html"):
            assert f'href="student/{lesson.name}"' in site[page]
        assert "You made no guess" not in site[f"{lesson.stem}.html"]


def test_the_pages_that_stand_alone_lead_on(site: dict[str, str]) -> None:
    assert f'<a href="{LESSONS[0].stem}.html" rel="next"' in site["index.html"]
    assert 'href="glossary.html"' in site["search.html"]


def test_each_page_of_a_lesson_leads_to_the_one_before_and_the_one_after(site: dict[str, str]) -> None:
    names = [lesson.stem for lesson in LESSONS]
    for before, after in pairwise(names):
        assert f'<a href="{after}.html" rel="next"' in site[f"{before}.html"]
        assert f'<a href="{before}.html" rel="prev"' in site[f"{after}.html"]
        assert f'<a href="slides_{after}.html" rel="next"' in site[f"slides_{before}.html"]


def test_pages_for_teachers_and_of_evidence_lead_on_too(site: dict[str, str]) -> None:
    teaching = ["teachers", *(f"lesson_{number:02}" for number in range(1, len(LESSONS) + 1))]
    for before, after in (*pairwise(teaching), *pairwise(["runs", "settled", "compare"])):
        assert f'<a href="{after}.html" rel="next"' in site[f"{before}.html"]
        assert f'<a href="{before}.html" rel="prev"' in site[f"{after}.html"]


def test_the_evidence_that_a_lesson_cites_is_a_page_with_its_figure(site: dict[str, str]) -> None:
    for name in ("runs", "settled", "compare"):
        assert f'<a href="{name}.html"' in site["07_evaluation.html"]
    for name in ("settled", "compare"):
        assert 'src="data:image/png;base64,' in site[f"{name}.html"]


def test_the_index_is_for_readers(site: dict[str, str]) -> None:
    assert not re.search(r"nbval|pytest|nbconvert|<code>make |Colab|EPYC", site["index.html"])


@pytest.mark.slow
def test_on_a_phone_no_page_is_wider_than_the_screen_and_the_search_finds(
    site: dict[str, str], tmp_path: Path, browser: Any
) -> None:
    for name, content in site.items():
        (tmp_path / name).write_text(content)
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.set_default_timeout(120_000)  # on a busy machine a page of megabytes takes its time
    for name in sorted(site):
        page.goto((tmp_path / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    page.goto((tmp_path / "search.html").as_uri())
    page.fill("#words", "hardest negative")
    page.wait_for_selector("#found li")
    page.click("#found li:first-child a")
    assert page.url.split("#")[0].endswith(".html")
    page.wait_for_load_state()
    page.wait_for_function("scrollY > 0")  # it has been led there
    assert page.evaluate(BELOW_THE_BAR, unquote(page.url.split("#")[1]))
    page.close()


@pytest.mark.slow
def test_on_the_site_a_slider_moves_its_figure_and_without_scripts_the_figure_is_there(
    site: dict[str, str], tmp_path: Path, browser: Any
) -> None:
    name = "08_joint_space.html"
    (tmp_path / name).write_text(site[name])
    page = browser.new_page()
    page.goto((tmp_path / name).as_uri())
    picture, slider = page.locator("figure img"), page.locator("figure input")
    before, least = picture.get_attribute("src"), slider.get_attribute("data-values").split()[0]
    slider.press("Home")
    assert picture.get_attribute("src") != before
    assert page.locator("figure output").inner_text() == least
    page.close()
    plain = browser.new_page(java_script_enabled=False)
    plain.goto((tmp_path / name).as_uri())
    assert plain.locator("figure img").get_attribute("src") == before
    assert not plain.locator("figure input").is_visible()
    plain.close()


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
    execution.communicate(timeout=HANGS)
    made = nbformat.read(notebook, as_version=4)
    for cell, (_, tested) in zip(made.cells, cells.values(), strict=True):
        cell.source = tested
    nbformat.write(made, notebook)
    settings = "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path
    run = start_python("-m", "pytest", *settings, "-rA", "--color=no", "-p", "no:cacheprovider", notebook)
    report = run.communicate(timeout=HANGS)[0]
    outcomes = [
        name
        for name, _ in sorted(re.findall(r"^(PASSED|FAILED) .*Cell (\d)", report, re.MULTILINE), key=lambda x: x[1])
    ]
    assert outcomes == ["PASSED", "FAILED", "PASSED", "FAILED", "FAILED", "FAILED"]
