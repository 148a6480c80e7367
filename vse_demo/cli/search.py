"""`vse-demo search`: images or captions by sentences and images, added and subtracted."""

import argparse
import contextlib
import csv
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vse_demo.cli.flags import Verbs, add_backend_flag, add_model_flags
from vse_demo.cli.lines import read_lines
from vse_demo.utils.text import sanitize_text

if TYPE_CHECKING:
    from vse_demo.model import EmbeddingModel, InteractionModel
    from vse_demo.retrieval import Hit, Query, Store

FEW = 100_000  # dot products: with fewer, loading the compiled operations takes longer than they save
FORMATS = ("text", "paths", "json", "csv")
FIELDS = ("folder", "split", "name", "source")  # that every image has
EXAMPLES = """\
examples:
  vse-demo search "a dog on the beach" --gallery G -k 20
  vse-demo search --image dunes.jpg --subtract people --gallery G     like this picture, but without people
  vse-demo search "a horse" --add 2:stripes --gallery G               stripes count twice
  vse-demo search --queries sentences.txt --gallery G --format csv    one search for each line
  vse-demo search "a dog" --gallery G --where folder=2024/summer --where date=2024-06-01..2024-08-31
  vse-demo search "a dog" --gallery G --format paths | xargs -d '\\n' cp -t found
"""


def add(verbs: Verbs) -> None:
    """Add the verb and its flags."""
    verb = verbs.add_parser(
        "search",
        help="find images by a sentence, or captions by an image",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("text", nargs="?", help="a sentence")
    verb.add_argument("--image", type=Path, help="an image, instead of a sentence or added to it")
    verb.add_argument(
        "-a", "--add", action="append", default=[], metavar="TERM",
        help="a sentence or the file of an image; N:TERM counts N times",
    )  # fmt: skip
    verb.add_argument(
        "-s", "--subtract", action="append", default=[], metavar="TERM", help="the same, to get away from"
    )
    verb.add_argument("--queries", type=Path, help="a file with a sentence in each line, - for standard input")
    verb.add_argument(
        "--find",
        choices=("images", "captions"),
        help="what to find (default: images; for --image alone captions, if the gallery has any)",
    )
    verb.add_argument(
        "--gallery",
        default="default",
        help="folder made by vse-demo index, or postgresql://… (default: the one that comes along)",
    )
    verb.add_argument(
        "--where", action="append", default=[], type=condition, metavar="KEY=VALUE",
        help="only images of a folder, split, name or date (2024-06-01..2024-08-31 is a range); can be repeated",
    )  # fmt: skip
    add_model_flags(verb, required=False)
    add_backend_flag(verb)
    verb.add_argument("-k", type=int, default=5, help="how many results (default: 5)")
    verb.add_argument(
        "--exact", action="store_true", help="compare every vector, without the index of a database; a folder has none"
    )
    verb.add_argument("--rerank", metavar="MODEL", help="a second model, of any kind, that puts the best 50 in order")
    verb.add_argument("--format", choices=FORMATS, default="text", help="how to print them (default: text)")
    verb.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    verb.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Print what is nearest to the queries."""
    sentences = read_queries(chosen.queries) if chosen.queries else []
    terms = [term(text) for text in chosen.add] + [negative(term(text)) for text in chosen.subtract]
    if chosen.image is not None:
        terms.insert(0, (chosen.image, 1.0))
    asked = [chosen.text] if chosen.text is not None else sentences
    if ((chosen.text is not None) and chosen.queries) or not (asked or terms):
        raise ValueError(
            'give a sentence, as in vse-demo search "a dog on the beach", or --image FILE, or --queries FILE'
        )
    if chosen.rerank and (chosen.add or chosen.subtract or (terms and asked)):
        raise ValueError("--rerank compares one sentence or one image with each result: leave out all other terms")

    from vse_demo.ops import disable_kernels
    from vse_demo.retrieval import CANDIDATES
    from vse_demo.shipped import load_gallery

    gallery = load_gallery(chosen.gallery, chosen.model, chosen.device, chosen.backend, lazy=True)
    if chosen.exact:
        gallery.exact = True
    only_image = chosen.image is not None and not asked and len(terms) == 1
    find = chosen.find or ("captions" if only_image and gallery.count_captions() else "images")
    if find == "captions" and not gallery.count_captions():
        raise ValueError("--find captions: this gallery has no captions; leave it out to find images")
    search = gallery.search_captions if find == "captions" else gallery.search_images
    queries: list[Query] = [[(text, 1.0), *terms] for text in asked] or [terms]
    second = load_second(chosen.rerank, chosen.device) if chosen.rerank else None
    count = max(chosen.k, CANDIDATES) if chosen.rerank else chosen.k
    with disable_kernels() if len(queries) * len(gallery) < FEW else contextlib.nullcontext():
        results = [search(query, count, where=dict(chosen.where)) for query in queries]
    if second is not None:
        wanted: list[str | Path] = [*asked] or [chosen.image]
        results = [
            put_in_order(second, item, find, hits)[: chosen.k] for item, hits in zip(wanted, results, strict=True)
        ]
    if not any(results):
        check_keys(gallery, [key for key, _ in chosen.where])
    titles = asked or [str(chosen.image or "")]
    show(chosen.format, find, titles, results, many=bool(chosen.queries))


def load_second(name: str, device: str) -> "EmbeddingModel | InteractionModel":
    """The model of the second stage, which must be able to read files of images."""
    from vse_demo.model import load_any
    from vse_demo.model.dual import DualEncoder

    model = load_any(name, device)
    if isinstance(model, DualEncoder) and model.config.vision == "region":
        raise ValueError(f"--rerank looks at images, and {name} takes precomputed regions")
    return model


def put_in_order(
    model: "EmbeddingModel | InteractionModel", asked: "str | Path", find: str, hits: "list[Hit]"
) -> "list[Hit]":
    """The second stage: a model compares what was asked for with each result."""
    from vse_demo.retrieval import rerank

    if isinstance(asked, Path) != (find == "captions"):
        raise ValueError("--rerank compares images with sentences: find images by a sentence, captions by an image")
    if isinstance(asked, Path):
        return rerank(model, hits, [asked], [hit.item for hit in hits])
    gone = next((hit.file for hit in hits if not Path(hit.file).is_file()), None)
    if gone is not None:
        raise ValueError(f"{gone} is not there: index its folder once more")
    return rerank(model, hits, [Path(hit.file) for hit in hits], [asked])


def read_queries(file: Path) -> list[str]:
    """The lines of a file, or of standard input, that are not empty."""
    lines = [line.strip() for line in read_lines(file) if line.strip()]
    if not lines:
        raise ValueError(f"{file} is empty: it should hold a sentence on each line")
    return lines


def check_keys(gallery: "Store", keys: Sequence[str]) -> None:
    """Refuse a filter by what no image of a gallery has."""
    unknown = [key for key in keys if key not in FIELDS and not gallery.count({key: (None, None)})]
    if unknown and len(gallery):
        known = [*FIELDS, *gallery.sample(1)[0].metadata]
        raise ValueError(f"--where {unknown[0]}: no image of this gallery has that; choose one of {', '.join(known)}")


def show(form: str, find: str, queries: Sequence[str], results: "Sequence[list[Hit]]", many: bool) -> None:
    """Print results in one of `FORMATS`."""
    if form == "json":
        content = [[as_dict(hit) for hit in hits] for hits in results]
        both = [{"query": query, "hits": hits} for query, hits in zip(queries, content, strict=True)]
        print(json.dumps(both if many else content[0], ensure_ascii=False))
    elif form == "csv":
        table = csv.writer(sys.stdout)
        table.writerow(["query", "rank", "score", "item", "file"])
        for query, hits in zip(queries, results, strict=True):
            for rank, hit in enumerate(hits, 1):
                table.writerow([query, rank, f"{hit.score:.6f}", hit.item, sanitize_text(hit.file)])
    elif form == "paths":
        for hit in (hit for hits in results for hit in hits):  # as the system has them, byte by byte
            sys.stdout.buffer.write(os.fsencode(hit.file) + b"\n")
    else:
        for query, hits in zip(queries, results, strict=True):
            if many:
                print(query)
            for hit in hits:
                print(f"{hit.score:6.3f}  {sanitize_text(hit.file if find == 'images' else hit.item)}")


def as_dict(hit: "Hit") -> dict[str, Any]:
    """What JSON says of a result."""
    return {"item": hit.item, "score": hit.score, "name": sanitize_text(hit.name), "file": sanitize_text(hit.file)}


def term(text: str) -> "tuple[str | Path, float]":
    """`2:golden retriever` -> ("golden retriever", 2.0); the name of a file with an image -> its path."""
    from vse_demo.data import IMAGE_SUFFIXES

    weight, rest = (
        (float(found[1]), found[2]) if (found := re.fullmatch(r"(\d+(?:\.\d+)?):(.+)", text)) else (1.0, text)
    )
    if Path(rest).is_file():
        return Path(rest), weight
    if Path(rest).suffix.lower() in IMAGE_SUFFIXES:
        raise ValueError(f"there is no image {rest}")
    return rest, weight


def negative(weighted: "tuple[str | Path, float]") -> "tuple[str | Path, float]":
    """The same, to get away from."""
    return weighted[0], -weighted[1]


def condition(text: str) -> tuple[str, Any]:
    """`split=test` -> ("split", "test"); `date=2024-06-01..` -> ("date", ("2024-06-01", None))."""
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    if ".." in value:
        low, _, high = value.partition("..")
        return key, (scalar(low), scalar(high))
    return key, scalar(value) if key not in FIELDS else value


def scalar(text: str) -> Any:
    """A number, true or false, or the text; nothing if there is none."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text or None
    return value if isinstance(value, int | float | bool) else text
