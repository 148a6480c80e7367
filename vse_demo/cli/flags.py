"""What the parsers of the verbs share."""

import argparse
import json
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any


class VerbParser(argparse.ArgumentParser):
    """The parser of one verb; flags that take long to list are added when the verb is used."""

    add_late: Callable[["VerbParser"], None] | None = None

    def parse_known_args(self, *arguments: Any, **more: Any) -> Any:
        if self.add_late is not None:
            add_late, self.add_late = self.add_late, None
            add_late(self)
        return super().parse_known_args(*arguments, **more)


if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[VerbParser]
else:
    Verbs = Any  # argparse has no public name for it


def add_model_flags(verb: argparse.ArgumentParser, required: bool = True) -> None:
    """Add `--model`, which can be repeated, and `--device`."""
    text = (
        "a folder, grid-minilm, grid-bigru, ensemble, user/repository of the Hugging Face hub, or package.module:Name"
    )
    more = "repeat for an ensemble" if required else "repeat for an ensemble (default: the one that indexed)"
    verb.add_argument("--model", action="append", required=required, help=f"{text}; {more}")
    verb.add_argument("--device", default="cpu", help="where the model computes: cpu, cuda, cuda:1, mps (default: cpu)")
    add_import_flag(verb)


def add_backend_flag(verb: argparse.ArgumentParser) -> None:
    """Add `--backend`, for verbs that only encode."""
    verb.add_argument(
        "--backend", choices=("torch", "onnx"), default="torch",
        help="what computes; onnx is ONNX Runtime, faster on CPUs, after an export of a minute (default: torch)",
    )  # fmt: skip


def add_import_flag(verb: argparse.ArgumentParser) -> None:
    """Add `--import`, for models with parts that are not of this package."""
    text = "a module of yours with parts of a stored model, which are not imported unasked; can be repeated"
    verb.add_argument("--import", dest="modules", action="append", metavar="MODULE", help=text)


def add_layout_flag(verb: argparse.ArgumentParser) -> None:
    """Add `--layout`, for data in a layout that is not known."""
    verb.add_argument("--layout", metavar="MODULE:NAME", help="a function of yours that reads the folder of --data")


def data_folder(text: str) -> Path:
    """The folder of a data set; `default` is the gallery of photographs that comes with the package."""
    from vse_demo.utils.paths import shipped

    folder = Path(text)
    return shipped("gallery") if text == "default" and not folder.exists() else folder


def add_setting(group: Any, name: str, default: Any, text: str) -> None:
    """Add the flag of one setting, of the type of its default; without a default it is a mapping."""
    flag = f"--{name.replace('_', '-')}"
    if default is MISSING:
        group.add_argument(flag, nargs="+", type=key_value, metavar="KEY=VALUE", help=text)
    elif isinstance(default, bool):
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
    else:
        shown = f"{text} (default: {default})" if default != "" else text
        group.add_argument(flag, type=type(default), help=shown)


def key_value(text: str) -> tuple[str, Any]:
    """`variant=paper` -> ("variant", "paper"); numbers, true and false, and lists as in JSON."""
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value
