"""What every store of encoded images can do, wherever it keeps them: in memory, in a folder, in a database.

A store implements the abstract methods; all that people call is built on them, so no caller needs to know which
store it has. An image is known by the digest of its content: a copy under another name is no new image.
"""

import abc
import heapq
import operator
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from torch import Tensor

from vse_demo.data.images import ImageLike
from vse_demo.data.layouts import CaptionedImages, Dataset, open_dataset
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.retrieval.entries import Entry, Hit, Where, matches
from vse_demo.retrieval.query import Query, encode_query
from vse_demo.retrieval.sync import Report, SyncReport, add_images, sync_stores


class Store(abc.ABC):
    """Images and captions that a model has encoded, ready to be searched both ways."""

    model: EmbeddingModel
    exact: bool = True
    """Whether a search compares every vector, or asks an index, which may miss some."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many images there are."""

    @abc.abstractmethod
    def count_captions(self) -> int:
        """How many captions there are."""

    @abc.abstractmethod
    def entries(self) -> Iterator[Entry]:
        """All images, without their vectors."""

    @abc.abstractmethod
    def lookup(self, digests: Collection[str]) -> dict[str, Entry]:
        """Those of these images that are here, by their digests, without their vectors."""

    @abc.abstractmethod
    def put(self, entries: Sequence[Entry], image_vectors: Tensor, caption_vectors: Tensor) -> None:
        """Write images, all of them or none; one that is there already is replaced.

        Args:
            entries: No two of the same digest.
            image_vectors: (I, D), one for each.
            caption_vectors: (C, D), of the captions of the first, of the second …
        """

    @abc.abstractmethod
    def discard(self, digests: Collection[str]) -> int:
        """Forget the images of these digests, with their captions; return how many there were."""

    @abc.abstractmethod
    def fetch(self, digests: Sequence[str]) -> tuple[Tensor, list[Tensor]]:
        """The vectors of images that are here (I, D), and those of the captions of each."""

    @abc.abstractmethod
    def nearest_images(self, queries: Tensor, k: int = 5, where: Where | None = None) -> list[list[Hit]]:
        """The k images nearest to each query (Q, D), best first."""

    @abc.abstractmethod
    def nearest_captions(self, queries: Tensor, k: int = 5, where: Where | None = None) -> list[list[Hit]]:
        """The k captions nearest to each query (Q, D), best first."""

    @abc.abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Let nobody else change the store while the block runs, as far as that is needed to change it oneself."""

    def count(self, where: Where | None = None) -> int:
        """How many images a filter lets through."""
        return sum(matches(entry, where) for entry in self.entries()) if where else len(self)

    def sample(self, count: int, where: Where | None = None) -> list[Entry]:
        """Some images, always the same: all of them, in their order, or those of the first digests."""
        all_of_them = [entry for entry in self.entries() if matches(entry, where or {})]
        if len(all_of_them) <= count:
            return all_of_them
        return heapq.nsmallest(count, all_of_them, key=operator.attrgetter("digest"))

    @property
    def names(self) -> list[str]:
        """Of the images."""
        return [entry.name for entry in self.entries()]

    @property
    def digests(self) -> list[str]:
        """Of the contents of the images."""
        return [entry.digest for entry in self.entries()]

    @property
    def captions(self) -> list[str]:
        """Of all images, one after another."""
        return [caption for entry in self.entries() for caption in entry.captions]

    def search_images(self, query: Query, k: int = 5, where: Where | None = None) -> list[Hit]:
        """The images nearest to a sentence, to an image, or to several added and subtracted; best first.

        Args:
            query: A sentence, an image (a PIL image or a `Path`), or a list of them, each by itself or with a weight:
                `["a beach", ("people", -1), Path("dunes.jpg")]`.
            k: How many.
            where: A filter, as in `{"split": "test", "date": ("2024-01-01", None)}`.
        """
        return self.nearest_images(encode_query(self.model, query), check_k(k), where)[0]

    def search_captions(self, query: ImageLike | Query, k: int = 5, where: Where | None = None) -> list[Hit]:
        """The captions nearest to an image or a query, best first; a string is a sentence."""
        return self.nearest_captions(encode_query(self.model, query), check_k(k), where)[0]

    def search_similar(self, digest: str, k: int = 5, where: Where | None = None) -> list[Hit]:
        """The images nearest to one of the store, itself left out, best first. Nothing is encoded.

        Args:
            digest: Of the image, as in `Hit.digest`.
            k: How many.
            where: A filter.

        Raises:
            KeyError: If the image is not here.
        """
        vector, _ = self.fetch([digest])
        hits = self.nearest_images(vector, check_k(k) + 1, where)[0]
        return [hit for hit in hits if hit.digest != digest][:k]

    def add(self, data: CaptionedImages, progress: bool = True, report: Report | None = None) -> int:
        """Encode the images that are not here yet, and their captions.

        One that cannot be read is left out, with its captions and with a warning: it does not stop the others.

        Args:
            data: Images and captions.
            progress: Whether to show a bar in the terminal.
            report: Is told how many images are done, and of how many.

        Returns:
            How many images were added.
        """
        return add_images(self, data, progress, report)

    def remove(self, names: Collection[str]) -> int:
        """Forget the images of these names, with their captions; return how many there were."""
        with self.writing():
            return self.discard([entry.digest for entry in self.entries() if entry.name in names])

    def sync(
        self,
        data: Dataset | str | Path,
        splits: Sequence[str] | None = None,
        progress: bool = True,
        report: Report | None = None,
    ) -> SyncReport:
        """Make the store equal to a folder: what is new is encoded, what was renamed or captioned anew is changed,
        what is gone is forgotten. What was read from other folders stays.

        A run that is killed goes on where it was. `sync_stores` does the same for several stores at once.

        Args:
            data: A data set or its folder. Captions are read anew; images that a caption file does not name are
                taken too.
            splits: Only these; without them, all splits and the images of none.
            progress: Whether to show a bar in the terminal.
            report: Is told how many images are done, with their captions, and of how many.

        Returns:
            What was done, and which files cannot be read and why.
        """
        dataset = data if isinstance(data, Dataset) else open_dataset(data)
        return sync_stores([self], dataset, splits, progress, report)[0]


def check_k(k: int) -> int:
    """Return how many results are wanted, if that is at least one."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    return k
