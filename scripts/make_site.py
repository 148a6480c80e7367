"""The lessons as web pages: the syllabus, a page and slides for each lesson, the teacher's pages, and a search.

    python scripts/make_site.py --out site

A page needs neither network nor scripts: formulas become MathML, which browsers draw themselves, figures are part of
the page, solutions and questions fold by `<details>`. Boxes that need a running notebook are left out; the sliders of
`vse_demo.teaching` bring their pictures along and a few lines of script, without which the first picture is shown.
Slides are the figures of a lesson, one to a screen, and before them what is to be guessed; the space bar goes on. The
search has a script of its own. The student's notebooks come along, to be taken from there.
"""

import argparse
import json
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

import nbformat
from jinja2 import DictLoader
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbformat import NotebookNode, v4

from vse_demo.teaching.guesses import NO_GUESS
from vse_demo.utils.files import write_atomic

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"
TEMPLATES = Path(__file__).parent / "site"
WIDGET = "application/vnd.jupyter.widget-view+json"
FIGURES = ("image/png", "image/jpeg")
CODE_OR_FORMULA = re.compile(r"(?P<code>```.*?```|`[^`]*`)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>.+?)\$", re.DOTALL)
GUESS = "**Guess first.**"
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Page:
    """A page of the site and what it is made from."""

    name: str  # of the file, without .html
    source: Path  # a notebook or a Markdown file
    notebook: NotebookNode

    @property
    def title(self) -> str:
        found = re.match(r"# (.+)", self.notebook.cells[0].source)
        return found[1] if found else self.name


def read_pages() -> dict[str, list[Page]]:
    """Rows of pages in the order of reading: the lessons, for teachers, the evidence; and pages that stand alone."""
    lessons = [Page(path.stem, path, nbformat.read(path, as_version=4)) for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
    teaching, runs = ROOT / "docs" / "teaching", ROOT / "assets" / "runs"
    for_teachers = [_read_text(path.stem, path) for path in sorted(teaching.glob("lesson_*.md"))]
    evidence = [_read_text(folder.name, folder / "README.md") for folder in (runs, runs / "settled", runs / "compare")]
    return {
        "alone": [_read_text("index", NOTEBOOKS / "README.md"), _read_text("glossary", teaching / "glossary.md")],
        "lessons": lessons,
        "teachers": [_read_text("teachers", teaching / "teachers.md"), *for_teachers],
        "evidence": evidence,
    }


def _read_text(name: str, path: Path) -> Page:
    """A Markdown file; what it says about running the notebooks is not for the site."""
    text = path.read_text(encoding="utf-8").split("\n## To run them")[0]
    return Page(name, path, v4.new_notebook(cells=[v4.new_markdown_cell(text)]))


def with_mathml(text: str) -> str:
    """Markdown whose formulas are MathML; what is in backticks stays.

    >>> with_mathml("`$HOME` and $x$").startswith("`$HOME` and <math")
    True
    """

    def replace(match: re.Match[str]) -> str:
        if match["code"]:
            return match["code"]
        display = "block" if match["block"] else "inline"
        return convert(" ".join((match["block"] or match["inline"]).split()), display=display)

    return CODE_OR_FORMULA.sub(replace, text)


def with_links(text: str, source: Path, files: dict[Path, str]) -> str:
    """Markdown whose links lead to files of the site; a link to any other becomes its own words."""

    def replace(match: re.Match[str]) -> str:
        target, _, part = match["target"].partition("#")
        if re.match(r"[a-z]+:", match["target"]) or not target:
            return match[0]
        name = files.get((source.parent / target).resolve())
        return f"[{match['text']}]({name}{'#' + part if part else ''})" if name else match["text"]

    return LINK.sub(replace, text)


def for_reading(page: Page, files: dict[Path, str]) -> NotebookNode:
    """A notebook without what only a running one can show or ask for, and with links to files of the site."""
    notebook = page.notebook.copy()
    notebook.metadata = {"title": page.title}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_links(with_mathml(cell.source), page.source, files)
            continue
        cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
        for output in cell.outputs:
            if "text/plain" in output.get("data", {}):
                output.data["text/plain"] = output.data["text/plain"].replace(NO_GUESS, "")
    return notebook


def headings(page: Page) -> list[tuple[str, str]]:
    """The sections of a page: title, and where nbconvert puts it."""
    texts = [cell.source for cell in page.notebook.cells if cell.cell_type == "markdown"]
    found = [title for text in texts for title in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    return [(plain(title), anchor(title)) for title in found]


def anchor(title: str) -> str:
    """Where nbconvert puts a heading: ASCII as it is, the rest percent-encoded.

    >>> anchor("A picture → captions?")
    'A-picture-%E2%86%92-captions?'
    """
    return quote(title.replace(" ", "-"), safe=string.punctuation)


def plain(text: str) -> str:
    """Markdown as words."""
    text = re.sub(r"<[^>]+>|[*`$#|]", " ", LINK.sub(r"\g<text>", text))
    return " ".join(text.split())


def sections(page: Page) -> Iterable[dict[str, str]]:
    """What the search looks through: each section of a page, as words."""
    title, words = page.title, list[str]()
    entry = {"page": page.title, "file": f"{page.name}.html"}
    for cell in page.notebook.cells:
        if cell.cell_type != "markdown":
            continue
        for part in re.split(r"^(?=## )", cell.source, flags=re.MULTILINE):
            heading = re.match(r"## (.+)", part)
            if heading:
                yield {**entry, "title": plain(title), "anchor": anchor(title), "text": " ".join(words)}
                title, words = heading[1], []
            words.append(plain(part))
    yield {**entry, "title": plain(title), "anchor": anchor(title), "text": " ".join(words)}


def slides(page: Page, around: dict[str, Page | None]) -> str:
    """A screen for each figure: the section it stands in, the figure, the words before it.

    What is to be guessed has a screen of its own before the figure that answers it.
    """
    shown, section, said, guess = [f"<section><h1>{escape(page.title)}</h1></section>"], "", "", ""
    for cell in page.notebook.cells:
        if cell.cell_type == "markdown":
            found = re.findall(r"^## (.+)$", cell.source, re.MULTILINE)
            section = plain(found[-1]) if found else section
            words, asks, question = cell.source.partition(GUESS)
            paragraphs = [plain(part) for part in words.split("\n\n") if not part.startswith(("#", "|", "<", "*Level"))]
            said = next((part for part in reversed(paragraphs) if part), said)
            guess = plain(asks + question) or guess
        elif "solution" not in cell.metadata.get("tags", []):
            heading = f"<h2>{escape(section)}</h2>"
            for output in cell.outputs:
                data = output.get("data", {})
                for kind in (kind for kind in FIGURES if kind in data):
                    if guess:
                        words = f'<p>{escape(said)}</p><p class="guess">{escape(guess)}</p>'
                        shown.append(f"<section>{heading}{words}</section>")
                    image, guess = f'<img alt="" src="data:{kind};base64,{data[kind].strip()}">', ""
                    shown.append(f"<section>{heading}{image}<p>{escape(said)}</p></section>")
            if "reveal(" in cell.source:  # what has no figure is answered in words
                guess = ""
    links = [f'<a href="{page.name}.html">the lesson</a>']
    links += [f'<a href="slides_{other.name}.html" rel="{way}">{way}</a>' for way, other in around.items() if other]
    template = (TEMPLATES / "slides.html").read_text(encoding="utf-8")
    return (
        template.replace("TITLE", escape(page.title))
        .replace("LINKS", " · ".join(links))
        .replace("SLIDES", "\n".join(shown))
    )


def neighbours(pages: Iterable[Page]) -> dict[str, dict[str, Page | None]]:
    """By the name of each page, the one before it and the one after it."""
    row = [None, *pages, None]
    return {page.name: {"prev": row[n], "next": row[n + 2]} for n, page in enumerate(row[1:-1])}


def make_site(out: Path) -> list[Path]:
    """Write the pages to the folder `out`, the syllabus first; returns their paths."""
    template = (TEMPLATES / "page.html.j2").read_text(encoding="utf-8")
    loader = DictLoader({"page.html.j2": template})
    exporters = {  # one that embeds images takes the tags of a formula apart
        embeds: HTMLExporter(template_file="page.html.j2", extra_loaders=[loader], embed_images=embeds)
        for embeds in (False, True)
    }
    rows = read_pages()
    pages = [page for row in rows.values() for page in row]
    around = {page: both for name, row in rows.items() if name != "alone" for page, both in neighbours(row).items()}
    around["index"] = {"next": rows["lessons"][0]}
    students = {page.name: NOTEBOOKS / "student" / page.source.name for page in rows["lessons"]}
    files = {page.source.resolve(): f"{page.name}.html" for page in pages}
    files |= {path.resolve(): f"student/{path.name}" for path in students.values()}
    written = []
    for page in pages:
        site = {**around.get(page.name, {}), "name": page.name, "headings": headings(page)}
        if page in rows["lessons"]:
            site |= {"slides": f"slides_{page.name}.html", "student": f"student/{page.source.name}"}
        resources = {"site": site, "metadata": {"path": str(page.source.parent)}}
        exporter = exporters[page in rows["evidence"]]
        body, _ = exporter.from_notebook_node(for_reading(page, files), resources=resources)
        written.append(out / f"{page.name}.html")
        write_atomic(written[-1], body)
    for page in rows["lessons"]:
        written.append(out / f"slides_{page.name}.html")
        write_atomic(written[-1], slides(page, around[page.name]))
        written.append(out / "student" / page.source.name)
        written[-1].parent.mkdir(exist_ok=True)
        write_atomic(written[-1], students[page.name].read_text(encoding="utf-8"))
    index = json.dumps([entry for page in pages for entry in sections(page)], ensure_ascii=False).replace("</", "<\\/")
    written.append(out / "search.html")
    write_atomic(written[-1], (TEMPLATES / "search.html").read_text(encoding="utf-8").replace("INDEX", index))
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Render the lessons to web pages.")
    parser.add_argument("--out", type=Path, default=Path("site"))
    for page in make_site(parser.parse_args().out):
        print(page)


if __name__ == "__main__":
    main()
