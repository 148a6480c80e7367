"""What a score means: how often a first result with it is right, and when to say that nothing is close.

Everything is measured on validation data, by searching. A caption asks for its image (`t2i`), an image for one of its
captions (`i2t`), and the first result counts as right if it belongs to the query. Three things to know:

- **The gallery matters.** The more there is to choose from, the higher the best wrong score. So everything is measured
  in galleries of several sizes, drawn at random from the validation images, and a score is read by the table of the
  size that is nearest. In a gallery larger than the validation split a score is worth less than its table says.
- **What is asked for is there.** `share_right` is the share among queries that have something right in the gallery. For
  the others there is `nothing_below`: it is measured with the same queries, once as they are and once with all that
  belongs to them taken away. A *false alarm* is "nothing is close" although the right one is there; a *miss* is
  silence although it is not.
- **Only its own counts.** Another image may fit a caption as well, but nobody has written that down. So shares are too
  low rather than too high, and part of the misses are good results.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vse_demo.utils.checks import check_choice
from vse_demo.utils.files import FileError, read_json, write_json

FILE = "calibration.json"
FORMAT = 1
WAYS = ("t2i", "i2t")
SIZES = (30, 100, 300)  # images in the smaller galleries; the largest is the whole split
FALSE_ALARMS = 0.05  # that are accepted: one in twenty
BINS = 20  # rows of a table, fewer where there are not `PER_BIN` queries for each
PER_BIN = 40


@dataclass(frozen=True)
class ScoreTable:
    """One way to search, in galleries of one size."""

    gallery: int  # images in it
    scores: tuple[float, ...]  # rising
    shares: tuple[float, ...]  # of right first results at each of these scores; they never fall
    shares_above: tuple[float, ...]  # the same at and above each score
    nothing_below: float  # a best score below this: nothing is close
    false_alarms: float  # share of queries told so although the right one is there
    misses: float  # share of queries not told so although it is not there

    def share_right(self, score: float) -> float:
        """The share of first results with this score that are right; a straight line between the rows of the table."""
        return float(np.interp(score, self.scores, self.shares))

    def share_right_above(self, score: float) -> float:
        """The share of first results with this score or a higher one that are right."""
        return float(np.interp(score, self.scores, self.shares_above))

    def score_for(self, share: float) -> float | None:
        """The lowest score at which this share of first results is right; None if no score of the table reaches it."""
        reached = np.flatnonzero(np.array(self.shares) >= share)
        if not len(reached):
            return None
        at = int(reached[0])
        if at == 0:
            return self.scores[0]
        low, high = self.shares[at - 1], self.shares[at]
        return self.scores[at - 1] + (share - low) / (high - low) * (self.scores[at] - self.scores[at - 1])

    def nothing_is_close(self, score: float) -> bool:
        """Whether to say that nothing is close, given the score of the first result."""
        return score < self.nothing_below


@dataclass(frozen=True)
class Calibration:
    """What the scores of one model mean, both ways."""

    fingerprint: str  # of the model
    images: int  # of the validation split
    captions: int
    t2i: tuple[ScoreTable, ...]  # by size of the gallery
    i2t: tuple[ScoreTable, ...]

    def table(self, way: str, gallery: int) -> ScoreTable:
        """The table of the size nearest to a gallery of so many images, as a ratio."""
        check_choice(way, WAYS, "way to search")
        tables: tuple[ScoreTable, ...] = getattr(self, way)
        return min(tables, key=lambda table: abs(math.log(table.gallery / max(gallery, 1))))


def calibrate(
    images: Tensor,
    texts: Tensor,
    image_ids: Tensor,
    fingerprint: str = "",
    sizes: Sequence[int] = SIZES,
    false_alarms: float = FALSE_ALARMS,
    seed: int = 0,
) -> Calibration:
    """Measure what scores mean.

    Args:
        images: (I, D) unit vectors of a validation split that the model has not learned from.
        texts: (C, D) of its captions.
        image_ids: (C,) the index of each caption's image; every image has at least one caption.
        fingerprint: of the model that made them.
        sizes: of the galleries besides the whole split; those that are not smaller than it are left out.
        false_alarms: share of queries that may be told that nothing is close although it is there.
        seed: of the galleries.

    Raises:
        ValueError: if there is too little to measure with, or `false_alarms` is not a share.
    """
    if not 0 < false_alarms < 1:
        raise ValueError(f"false_alarms must be between 0 and 1, not {false_alarms}")
    if len(images) < 2 * PER_BIN:
        raise ValueError(f"{len(images)} images are too few to say what a score means: at least {2 * PER_BIN}")
    similarities = (texts @ images.T).double().numpy()  # (C, I)
    if not np.isfinite(similarities).all():
        raise ValueError("some similarities are not numbers: the model that made them is broken")
    of, random = image_ids.numpy(), np.random.default_rng(seed)
    tables: dict[str, list[ScoreTable]] = {way: [] for way in WAYS}
    for size in [*sorted(size for size in set(sizes) if 2 <= size < len(images)), len(images)]:
        searches = [_search(similarities, of, chosen) for chosen in _galleries(len(images), size, random)]
        for way in WAYS:
            found = np.concatenate([search[way] for search in searches])
            tables[way].append(_make_table(size, found, false_alarms))
    return Calibration(fingerprint, len(images), len(texts), tuple(tables["t2i"]), tuple(tables["i2t"]))


def _galleries(images: int, size: int, random: np.random.Generator) -> list[np.ndarray]:
    """All images, dealt out to galleries of one size; for the smaller ones several times over."""
    rounds = 1 if size == images else 5
    deals = [random.permutation(images) for _ in range(rounds)]
    return [deal[start : start + size] for deal in deals for start in range(0, images - size + 1, size)]


def _search(similarities: np.ndarray, image_ids: np.ndarray, chosen: np.ndarray) -> dict[str, np.ndarray]:
    """Ask in a gallery of the chosen images for everything that is in it.

    Returns:
        For each way a row per query: the best score of what belongs to it, the best of what does not, its image.
    """
    captions = np.flatnonzero(np.isin(image_ids, chosen))
    scores = similarities[np.ix_(captions, chosen)]
    own = image_ids[captions, None] == chosen  # (captions, images)
    right, wrong = np.where(own, scores, -np.inf), np.where(own, -np.inf, scores)
    return {
        "t2i": np.stack([right.max(1), wrong.max(1), image_ids[captions]], axis=1),
        "i2t": np.stack([right.max(0), wrong.max(0), chosen], axis=1),
    }


def _make_table(size: int, found: np.ndarray, false_alarms: float) -> ScoreTable:
    right, wrong, image = found.T
    best, is_right = np.maximum(right, wrong), right > wrong  # a tie counts against the model
    order = np.argsort(best, kind="stable")
    parts = np.array_split(order, max(1, min(BINS, len(order) // PER_BIN)))
    scores = np.array([best[part].mean() for part in parts])
    counts = np.array([len(part) for part in parts])
    shares = isotonic(np.array([is_right[part].mean() for part in parts]), counts)
    above = np.cumsum((shares * counts)[::-1])[::-1] / np.cumsum(counts[::-1])[::-1]
    halves = [image % 2 == half for half in (0, 1)]
    rates = [  # the threshold of one half of the images, tried on the other half
        _rates(best[~half], wrong[~half], float(np.quantile(best[half], false_alarms))) for half in halves
    ]
    alarms, misses = np.mean(rates, axis=0)
    columns = np.round([scores, shares, above], 4)
    columns = columns[:, np.diff(columns[0], prepend=-np.inf) > 0]  # a collapsed model has one score for all
    numbers = np.round([np.quantile(best, false_alarms), alarms, misses], 4)
    return _table(size, columns, numbers.tolist())


def _rates(best: np.ndarray, wrong: np.ndarray, threshold: float) -> tuple[float, float]:
    """False alarms and misses of a threshold, from best scores with the right one there and without it."""
    return float((best < threshold).mean()), float((wrong >= threshold).mean())


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest values, by weighted squares, that never fall: neighbours that do are averaged.

    >>> isotonic(np.array([0.1, 0.5, 0.3, 0.9]), np.array([1, 1, 1, 1])).tolist()
    [0.1, 0.4, 0.4, 0.9]
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, length = value, float(weight), 1
        while blocks and blocks[-1][0] >= mean:
            before, its, count = blocks.pop()
            mean, total, length = (mean * total + before * its) / (total + its), total + its, length + count
        blocks.append((mean, total, length))
    return np.repeat([mean for mean, _, _ in blocks], [length for _, _, length in blocks])


def write_calibration(calibration: Calibration, folder: Path) -> None:
    """Put a calibration into the folder of its model, or of the first member of its ensemble.

    It takes the place of an older one of the same model; those of others stay.
    """
    known = {**read_calibrations(folder), calibration.fingerprint: calibration}
    content = {fingerprint: asdict(each) for fingerprint, each in known.items()}
    write_json(folder / FILE, {"format": FORMAT, "digest": _digest(content), "calibrations": content})


def read_calibrations(folder: Path) -> dict[str, Calibration]:
    """The calibrations in the folder of a model, by the fingerprint of the model or ensemble that each was made for.

    Raises:
        FileError: if the file is not as it was written, or holds what cannot have been measured.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    content = read_json(path)
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"it has format {content['format']!r}, and this version reads {FORMAT}")
        if content["digest"] != _digest(content["calibrations"]):
            raise ValueError("it is not as it was written")
        return {fingerprint: _read_one(entry) for fingerprint, entry in content["calibrations"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(
            f"{path} is no calibration: {error}; delete it, or make it again: vse-demo calibrate"
        ) from error


def _digest(content: object) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _read_one(entry: dict[str, Any]) -> Calibration:
    t2i, i2t = (tuple(_read_table(table) for table in entry[way]) for way in WAYS)
    if not (_is_count(entry["images"]) and _is_count(entry["captions"]) and t2i and i2t):
        raise ValueError("its sizes are missing")
    return Calibration(str(entry["fingerprint"]), entry["images"], entry["captions"], t2i, i2t)


def _read_table(entry: dict[str, Any]) -> ScoreTable:
    if set(entry) != {each.name for each in fields(ScoreTable)} or not _is_count(entry["gallery"]):
        raise ValueError("a table has other entries than it should")
    scores, shares, above = (np.array(entry[name], float) for name in ("scores", "shares", "shares_above"))
    line, alarms, misses = (float(entry[name]) for name in ("nothing_below", "false_alarms", "misses"))
    if not (scores.shape == shares.shape == above.shape == (max(len(scores), 1),) and (np.diff(scores) > 0).all()):
        raise ValueError("the scores of a table do not rise")
    if not np.isfinite([*scores, line]).all():
        raise ValueError("a score is not a number")
    if not all(0 <= share <= 1 for share in (*shares, *above, alarms, misses)):
        raise ValueError("a share is not between 0 and 1")
    if (np.diff(shares) < 0).any() or (np.diff(above) < 0).any():
        raise ValueError("the shares of a table fall")
    return _table(entry["gallery"], np.stack([scores, shares, above]), [line, alarms, misses])


def _table(gallery: int, columns: np.ndarray, numbers: Sequence[float]) -> ScoreTable:
    scores, shares, above = (tuple(column) for column in columns.tolist())
    return ScoreTable(gallery, scores, shares, above, *numbers)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
