"""The lessons as web pages: the syllabus, a page and slides for each lesson, the teacher's pages, and a search.

    python scripts/make_site.py --out site

A page needs neither network nor scripts: formulas become MathML, which browsers draw themselves, figures are part of
the page, solutions and questions fold by `<details>`. Boxes that need a running notebook are left out; the sliders of
`vse_demo.teaching` bring their pictures along and a few lines of script, without which the first picture is shown.
Slides are the figures of a lesson, one to a screen; the space bar goes on. The search has a script of its own.
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

from vse_demo.utils.files import write_atomic

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"
TEMPLATES = Path(__file__).parent / "site"
WIDGET = "application/vnd.jupyter.widget-view+json"
FIGURES = ("image/png", "image/jpeg")
CODE_OR_FORMULA = re.compile(r"(?P<code>```.*?```|`[^`]*`)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>.+?)\$", re.DOTALL)
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


def read_pages() -> list[Page]:
    """The syllabus first, then the lessons, then what teachers need, then the evidence that lessons refer to."""
    lessons = [Page(path.stem, path, nbformat.read(path, as_version=4)) for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
    texts = {"index": NOTEBOOKS / "README.md"}
    texts |= {path.stem: path for path in sorted((ROOT / "docs" / "teaching").glob("*.md"))}
    texts["runs"] = ROOT / "assets" / "runs" / "README.md"
    others = [Page(name, path, _as_notebook(path.read_text(encoding="utf-8"))) for name, path in texts.items()]
    return [others[0], *lessons, *others[1:]]


def _as_notebook(text: str) -> NotebookNode:
    return v4.new_notebook(cells=[v4.new_markdown_cell(text)])


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


def with_links(text: str, source: Path, pages: dict[Path, str]) -> str:
    """Markdown whose links lead to pages of the site; a link to any other file becomes its own words."""

    def replace(match: re.Match[str]) -> str:
        target, _, part = match["target"].partition("#")
        if re.match(r"[a-z]+:", match["target"]) or not target:
            return match[0]
        name = pages.get((source.parent / target).resolve())
        return f"[{match['text']}]({name}.html{'#' + part if part else ''})" if name else match["text"]

    return LINK.sub(replace, text)


def for_reading(page: Page, pages: dict[Path, str]) -> NotebookNode:
    """A notebook without what only a running one can show, and with links to pages."""
    notebook = page.notebook.copy()
    notebook.metadata = {"title": page.title}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = with_links(with_mathml(cell.source), page.source, pages)
        else:
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
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


def slides(page: Page) -> str:
    """A screen for each figure: the section it stands in, the words before it, the figure."""
    shown, section, said = [f"<section><h1>{escape(page.title)}</h1></section>"], "", ""
    for cell in page.notebook.cells:
        if cell.cell_type == "markdown":
            found = re.findall(r"^## (.+)$", cell.source, re.MULTILINE)
            section = plain(found[-1]) if found else section
            paragraphs = [
                plain(part) for part in cell.source.split("\n\n") if not part.startswith(("#", "|", "<", "*Level"))
            ]
            said = next((part for part in reversed(paragraphs) if part), said)
        elif "solution" not in cell.metadata.get("tags", []):
            for output in cell.outputs:
                data = output.get("data", {})
                for kind in (kind for kind in FIGURES if kind in data):
                    image = f'<img alt="" src="data:{kind};base64,{data[kind].strip()}">'
                    shown.append(f"<section><h2>{escape(section)}</h2>{image}<p>{escape(said)}</p></section>")
    template = (TEMPLATES / "slides.html").read_text(encoding="utf-8")
    return (
        template.replace("TITLE", escape(page.title))
        .replace("BACK", f"{page.name}.html")
        .replace("SLIDES", "\n".join(shown))
    )


def make_site(out: Path) -> list[Path]:
    """Write the pages to the folder `out`, the syllabus first; returns their paths."""
    template = (TEMPLATES / "page.html.j2").read_text(encoding="utf-8")
    exporter = HTMLExporter(template_file="page.html.j2", extra_loaders=[DictLoader({"page.html.j2": template})])
    pages = read_pages()
    names = {page.source.resolve(): page.name for page in pages}
    lessons = [page for page in pages if page.source.suffix == ".ipynb"]
    written = []
    for page in pages:
        number = lessons.index(page) if page in lessons else -1
        around = {
            "previous": lessons[number - 1] if number > 0 else None,
            "next": lessons[number + 1] if 0 <= number < len(lessons) - 1 else None,
            "slides": f"slides_{page.name}.html" if number >= 0 else "",
        }
        resources = {"site": {**around, "name": page.name, "headings": headings(page), "lessons": lessons}}
        body, _ = exporter.from_notebook_node(for_reading(page, names), resources=resources)
        written.append(out / f"{page.name}.html")
        write_atomic(written[-1], body)
    for page in lessons:
        written.append(out / f"slides_{page.name}.html")
        write_atomic(written[-1], slides(page))
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
