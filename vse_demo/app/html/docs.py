"""The page of the API: how programs call the five functions, with answers of this very server."""

import inspect
import json
from typing import Any

from vse_demo.app.html.markup import render

LONGEST = 900  # characters of an answer that are shown


def docs_page(address: str, examples: dict[str, tuple[str, dict[str, Any], Any]]) -> str:
    """Show the functions.

    Args:
        address: Of the app, with a slash at its end.
        examples: By name: what it does, arguments, and the answer to them.
    """
    functions = []
    for name, (text, arguments, answer) in examples.items():
        shown = json.dumps(answer, indent=1, ensure_ascii=False)
        shown = shown.replace('"url": "', f'"url": "{address}')  # the answers are kept, for callers of any address
        short = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]} …"
        python = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        functions.append(
            {"name": name, "text": text, "python": python, "answer": inspect.cleandoc(short)}
            | {"json": json.dumps(arguments, ensure_ascii=False).replace("'", "'\\''")}
        )
    return render("docs.html", address=address, functions=functions)
