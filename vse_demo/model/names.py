"""Models by name: those that come with the package, folders, and repositories of the Hugging Face hub."""

import re
from pathlib import Path

from vse_demo.model.hub import fetch_model
from vse_demo.utils.files import FileError, recover_folder
from vse_demo.utils.paths import shipped

MODELS = {  # name: the folders of assets/models that it is made of
    "grid-minilm": ("grid-minilm",),
    "grid-bigru": ("grid-bigru",),
    "ensemble": ("grid-minilm", "grid-bigru"),
}
DEFAULT = "grid-minilm"
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?", re.ASCII)  # user/repository, user/repository@revision


def list_models() -> list[str]:
    """The names of the models that come with the package.

    >>> list_models()
    ['grid-minilm', 'grid-bigru', 'ensemble']
    """
    return list(MODELS)


def find_models(name: str | Path) -> list[Path]:
    """The folders that a name stands for: one, or those of an ensemble's members.

    Args:
        name: A folder; else a name of `list_models`; else a repository of the Hugging Face hub, as in `user/repository`
            or `user/repository@revision`, which is fetched, once, into the cache of the hub's library.

    Raises:
        FileError: If it is none of these, or the hub cannot be reached.
    """
    folder = Path(name)
    if recover_folder(folder).is_dir():
        return [folder]
    if str(name) in MODELS:
        return [shipped("models") / part for part in MODELS[str(name)]]
    known = f"{name} is not a folder with a model, and none of those that come along ({', '.join(MODELS)})"
    if not HUB_NAME.fullmatch(str(name)):
        raise FileError(known)
    try:
        return [fetch_model(str(name))]
    except FileError as error:
        raise FileError(f"{known}; {error}") from error


def find_model(name: str | Path) -> Path:
    """The folder of a single model.

    Raises:
        FileError: If there is none, or the name is that of an ensemble.
    """
    folders = find_models(name)
    if len(folders) > 1:
        members = " or ".join(folder.name for folder in folders)
        raise FileError(
            f"{name} is not one model but {len(folders)}: name one of them, {members} "
            f"(in Python load_model({str(name)!r}) loads them all)"
        )
    return folders[0]


def shipped_folder(name: str) -> str:
    """The folder of a model that comes along, by its name; anything else is as it was.

    Raises:
        FileError: If the name is that of an ensemble.
    """
    return str(find_model(name)) if name in MODELS and not Path(name).exists() else name


def lasting_name(name: str | Path) -> str:
    """A name that means the same model in any folder and at any time: a folder's whole path, or the name itself."""
    folder = Path(name)
    return str(folder.resolve()) if recover_folder(folder).is_dir() else str(name)
