"""The galleries of several models over one folder, made in one pass and kept in a cache, with their maps."""

import hashlib
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from vse_demo.app.map import Sample, compute_map
from vse_demo.data.layouts import Dataset
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.retrieval.gallery import Gallery
from vse_demo.retrieval.sync import Report, SyncReport, sync_stores
from vse_demo.utils.files import FileError, write_atomic
from vse_demo.utils.paths import default_cache


class FolderGalleries:
    """A folder as each of several models sees it: every image is decoded once, and models share their backbones.

    Args:
        models: Loads the models by name.
        dataset: The folder; all its splits, and images of none.
        root: Where the cache is; by default that of the user.
    """

    def __init__(
        self,
        models: Callable[[], Mapping[str, EmbeddingModel]],
        dataset: Dataset,
        root: Path | None = None,
    ):
        self.models, self.dataset, self.root = models, dataset, root or default_cache()
        self.report = SyncReport()  # what was found in the folder
        self._lock = threading.Lock()
        self._waiting: list[Report] = []
        self._made: Future[dict[str, Gallery]] | None = None

    def get(self, name: str, report: Report | None = None) -> Gallery:
        """Wait for the gallery of a model; the first who asks makes those of all, and all who wait see how far it is.

        Raises:
            FileError: The cache cannot be written, or no image can be read.
        """
        with self._lock:
            self._waiting += [report] if report else []
            mine = self._made is None or (self._made.done() and self._made.exception() is not None)
            if mine:
                self._made = Future()
            made = self._made
        assert made is not None
        if mine:
            try:
                made.set_result(self._make())
            except BaseException as error:
                made.set_exception(error)
        return made.result()[name]

    def _make(self) -> dict[str, Gallery]:
        models = self.models()
        folders = {name: self.root / "galleries" / self._place(model) for name, model in models.items()}
        try:
            galleries = {name: open_cached(folders[name], model) for name, model in models.items()}
            tell = self._tell
            self.report = sync_stores(list(galleries.values()), self.dataset, report=tell, look=tell)[0]
        except OSError as error:
            place = self.root / "galleries"
            raise FileError(f"{place} cannot be a cache ({error.strerror}): set VSE_DEMO_CACHE") from error
        for reason in self.report.broken.values():
            warnings.warn(f"left out: {reason}", stacklevel=2)
        if not any(map(len, galleries.values())):
            raise FileError(f"none of the pictures in {self.dataset.folder} can be read")
        return galleries

    def _tell(self, done: int, total: int) -> None:
        for report in list(self._waiting):
            report(done, total)

    def _place(self, model: EmbeddingModel) -> str:
        name = f"{self.dataset.folder.resolve()} {model.fingerprint()}"
        return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def cached_map(sample: Sample, model: EmbeddingModel, root: Path | None = None) -> np.ndarray:
    """Place a sample on a map; it is computed once, and kept in the cache until its images or the model change."""
    content = [text for entry in sample.entries for text in (entry.digest, *entry.captions)]
    joined = "\0".join([model.fingerprint(), *content])
    name = hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    file = (root or default_cache()) / "maps" / f"{name}.safetensors"
    try:
        return load_file(file)["places"]
    except (OSError, SafetensorError, KeyError):  # none yet, or a broken one
        places = compute_map(sample)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, save({"places": places}))
    except OSError:
        pass  # it is there for this run
    return places


def cached_gallery(
    model: EmbeddingModel, dataset: Dataset, report: Report | None = None, root: Path | None = None
) -> Gallery:
    """The gallery of one model over a folder; see `FolderGalleries`."""
    return FolderGalleries(lambda: {"": model}, dataset, root).get("", report)


def open_cached(folder: Path, model: EmbeddingModel) -> Gallery:
    """Open a gallery of the cache; a broken one is begun anew."""
    try:
        return Gallery.open(folder, model)
    except FileError:
        Gallery(model).save(folder)
        return Gallery.open(folder, model)
