"""The lessons as web pages: one per notebook, and the syllabus as `index.html`.

    python scripts/make_site.py --out site

A page needs neither network nor scripts: formulas become MathML, which browsers draw themselves, figures are part of
the page, solutions fold by `<details>`, and sliders, which would need a running notebook, are left out.
"""

import argparse
import re
from pathlib import Path

import nbformat
from jinja2 import DictLoader
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbformat import NotebookNode, v4

from vse_demo.utils.files import write_atomic

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
WIDGET = "application/vnd.jupyter.widget-view+json"
CODE_OR_FORMULA = re.compile(r"(?P<code>```.*?```|`[^`]*`)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>.+?)\$", re.DOTALL)
PAGE = """\
{%- extends 'lab/index.html.j2' -%}
{% block html_head_js %}{% endblock %}
{% block jupyter_widgets %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% block html_head_css %}
<style>
main, nav { max-width: 70rem; margin: 0 auto; }
nav { padding: 1rem 5rem; font-family: sans-serif; }
.jp-InputArea-editor { overflow-x: auto; }
.jp-RenderedHTMLCommon { font-size: 16px; line-height: 1.5; }
.jp-RenderedHTMLCommon table { font-size: 14px; margin-left: 0; }
.jp-OutputArea-output img { max-width: 100%; }
summary { cursor: pointer; }
.solution > summary { padding: 0.3rem 1rem 0.3rem 5rem; font-family: sans-serif; }
</style>
{% endblock %}
{% block body_header %}
<body class="jp-Notebook" data-jp-theme-light="true">
{% if nb.cells | length > 1 %}<nav><a href="index.html">All lessons</a></nav>{% endif %}
<main>
{% endblock %}
{% block codecell %}
{% if 'solution' in cell.metadata.get('tags', []) %}
<details class="solution"><summary>Solution</summary>{{ super() }}</details>
{% else %}{{ super() }}{% endif %}
{% endblock %}
"""


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


def for_reading(notebook: NotebookNode) -> NotebookNode:
    """A notebook without what only a running one can show, and with links to pages instead of notebooks."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\((\w+)\.ipynb\)", r"(\1.html)", with_mathml(cell.source))
        else:
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    return notebook


def make_site(out: Path) -> list[Path]:
    """Write the pages to the folder `out`, the syllabus first; returns their paths."""
    exporter = HTMLExporter(template_file="page.html.j2", extra_loaders=[DictLoader({"page.html.j2": PAGE})])
    notebooks = {path.stem: nbformat.read(path, as_version=4) for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    syllabus = v4.new_notebook(cells=[v4.new_markdown_cell((NOTEBOOKS / "README.md").read_text(encoding="utf-8"))])
    pages = []
    for name, notebook in {"index": syllabus, **notebooks}.items():
        title = re.match(r"# (.+)", notebook.cells[0].source)
        notebook.metadata["title"] = title[1] if title else name
        pages.append(out / f"{name}.html")
        body, _ = exporter.from_notebook_node(for_reading(notebook))
        write_atomic(pages[-1], body)
    return pages


def main() -> None:
    parser = argparse.ArgumentParser(description="Render the lessons to web pages.")
    parser.add_argument("--out", type=Path, default=Path("site"))
    for page in make_site(parser.parse_args().out):
        print(page)


if __name__ == "__main__":
    main()
