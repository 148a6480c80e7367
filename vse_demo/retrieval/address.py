"""Galleries by their addresses: a folder, or `postgresql://…`. Nobody else needs to know which."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vse_demo.model.protocol import EmbeddingModel
from vse_demo.retrieval.gallery import Gallery, read_models
from vse_demo.retrieval.store import Store
from vse_demo.utils.files import FileError
from vse_demo.utils.objects import is_reference

if TYPE_CHECKING:
    from vse_demo.retrieval.postgres import PostgresGallery


def is_database(address: str | Path) -> bool:
    """Whether an address is that of a database.

    >>> is_database("postgresql://me@host/photos"), is_database("photos")
    (True, False)
    """
    return str(address).startswith(("postgresql://", "postgres://"))


def open_store(address: str | Path, model: EmbeddingModel, models: Sequence[str | Path] = ()) -> Store:
    """Open a gallery to change it, or make one.

    Args:
        address: A folder, or `postgresql://user@host/database`.
        model: The one that encodes.
        models: Names of the model, for `stored_models` to find again.

    Raises:
        FileError: If it cannot be opened, or is of another model.
    """
    return _database(address, model, models) if is_database(address) else Gallery.open(address, model, models)


def load_store(address: str | Path, model: EmbeddingModel) -> Store:
    """Open a gallery to search it, if there is one: nothing is made; see `open_store`."""
    return _database(address, model, create=False) if is_database(address) else Gallery.load(address, model)


def stored_models(address: str | Path) -> list[str]:
    """The names of the model that encoded a gallery, as far as it was told, for `load_model`.

    Raises:
        FileError: If there is no gallery, it does not say, or the model is an object of Python: galleries may come from
            anywhere, so nothing is imported or called because one names it.
    """
    if not is_database(address):
        names = read_models(Path(address))
    else:
        from vse_demo.retrieval import postgres

        names = postgres.read_models(str(address))
    if own := next(filter(is_reference, names), None):
        raise FileError(f"this gallery was encoded by {own}, which is imported only if you name it: --model {own}")
    return names


def _database(
    address: str | Path, model: EmbeddingModel, models: Sequence[str | Path] = (), create: bool = True
) -> "PostgresGallery":
    from vse_demo.retrieval.postgres import PostgresGallery  # an extra, which others do not need

    return PostgresGallery(str(address), model, models, create=create)
