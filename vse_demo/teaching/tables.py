"""Tables of numbers whose rows keep their names in sight where a screen is narrower than the table."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

BACKGROUND = "background: var(--jp-layout-color0, #fff)"  # of JupyterLab's theme
NAME = f"position: sticky; left: 0; {BACKGROUND}; text-align: left; white-space: nowrap; max-width: none"


@dataclass(frozen=True)
class Table:
    """Rows of texts, the first of each its name."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} in a table of {len(self.columns)} columns: {row}")

    def __repr__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.columns))]
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
        )

    def _repr_html_(self) -> str:
        head, *body = [
            f'<tr><th style="{NAME}">{escape(name)}</th>{_cells(tag, cells)}</tr>'
            for tag, (name, *cells) in (("th", self.columns), *(("td", row) for row in self.rows))
        ]
        return f'<div style="overflow-x: auto"><table><thead>{head}</thead><tbody>{"".join(body)}</tbody></table></div>'


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)
