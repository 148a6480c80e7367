"""How fast are pictures indexed on one core, decoding included? A worker's own code, against CLIP ViT-B/32.

    python -m benchmarks.indexing

Both sides decode the same files, in turn, on one thread. CLIP's weights are random, which does not matter for time.
Large photographs are also encoded as they were decoded in full, for the cosine between the two. Last, a worker on each
core at once, against one alone.
"""

import io
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from vse_demo.data import decode_image, resize_images
from vse_demo.retrieval.cluster import PictureEncoder
from vse_demo.shipped import load_shipped
from vse_demo.utils.paths import shipped
from vse_demo.utils.runtime import tune_process

Work = Callable[[], object]
CAMERA = (4000, 3000)
MODEL = "grid-bigru"
MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in ((0.481, 0.458, 0.408), (0.269, 0.261, 0.276)))


@dataclass(frozen=True)
class Speed:
    """Pictures per second of processor time, and how many times as many as the other side, with quartiles."""

    what: str
    against: str
    per_second: float
    ratio: float
    low: float
    high: float


def measure(count: int = 32, rounds: int = 5) -> Iterator[Speed]:
    """Rows of the table: photographs of the shipped gallery, and the same as a camera would take them."""
    from transformers import CLIPConfig, CLIPModel

    clip = CLIPModel(CLIPConfig()).eval()

    @torch.inference_mode()
    def encode_by_clip(files: Sequence[bytes]) -> None:
        images = [decode_image(io.BytesIO(file), "a photograph") for file in files]
        pixels = resize_images(images, 224).float() / 255
        clip.get_image_features(pixel_values=(pixels - MEAN) / STD)

    model = load_shipped(MODEL).model
    draft, full = PictureEncoder(lambda: model), PictureEncoder(lambda: model)
    full.smallest = 0
    photos = gallery_photos(count)
    camera = [enlarged(photo) for photo in photos[: count // 4]]
    for name, files in (("photographs of the gallery", photos), (f"{CAMERA[0]} × {CAMERA[1]} pixels", camera)):
        what = f"{name}, seen at {draft.smallest // 2} px"
        yield compare(
            what, "CLIP ViT-B/32", files, lambda f=files: run(draft, f), lambda f=files: encode_by_clip(f), rounds
        )
        yield compare(
            what, "decoding in full", files, lambda f=files: run(draft, f), lambda f=files: run(full, f), rounds
        )
        cosines = (run(draft, files) * run(full, files)).sum(1)
        print(f"cosine to full decoding, {name}: at least {cosines.min():.5f}, mean {cosines.mean():.5f}")


def measure_cores(cores: int, model: str, count: int = 32, rounds: int = 5) -> float:
    """How fast a worker is while there is one on every core, as a share of its speed alone, by processor time."""
    start = multiprocessing.get_context("spawn")
    workers = []
    for _ in range(cores):
        here, there = start.Pipe()
        process = start.Process(target=work_when_told, args=[there, model, count], daemon=True)
        process.start()
        workers.append((process, here))
    for _, pipe in workers:
        pipe.recv()  # it is ready
    shares = [spent(workers[:1]) / spent(workers) for _ in range(rounds)]
    for process, pipe in workers:
        pipe.send(False)
        process.join()
    return statistics.median(shares)


def spent(workers: Sequence[tuple[Any, Any]]) -> float:
    """Seconds of processor time that these workers, at once, take for their pictures; their mean."""
    for _, pipe in workers:
        pipe.send(True)
    return statistics.mean([pipe.recv() for _, pipe in workers])


def work_when_told(pipe: Any, model: str, count: int) -> None:
    """A worker in a process of its own: encodes photographs of the gallery as often as it is told to."""
    tune_process()
    encoder, photos = PictureEncoder(lambda: load_shipped(model).model), gallery_photos(count)
    run(encoder, photos)
    pipe.send(0.0)
    while pipe.recv():
        pipe.send(seconds(lambda: run(encoder, photos)))


def gallery_photos(count: int) -> list[bytes]:
    """The files of some photographs of the shipped gallery."""
    return [file.read_bytes() for file in sorted(shipped("gallery").rglob("*.jpg"))[:count]]


def compare(what: str, against: str, files: Sequence[bytes], ours: Work, theirs: Work, rounds: int) -> Speed:
    """Time both sides in turn, by the processor time of this process: other programs do not count."""
    ours(), theirs()
    times = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    ratios = [their / our for our, their in times]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Speed(what, against, len(files) / statistics.median(our for our, _ in times), middle, low, high)


def seconds(work: Work) -> float:
    """Processor time of one run."""
    start = time.process_time()
    work()
    return time.process_time() - start


def run(encoder: PictureEncoder, files: Sequence[bytes]) -> np.ndarray:
    """What a worker does with a batch."""
    columns: dict[str, Any] = {"content": files, **dict.fromkeys(("name", "captions", "error"), [""] * len(files))}
    done = encoder({name: np.array(values, object) for name, values in columns.items()})
    return np.stack([np.frombuffer(vector, np.float32) for vector in done["vector"]])


def enlarged(photo: bytes) -> bytes:
    """The same photograph in the size of a camera's."""
    stream = io.BytesIO()
    Image.open(io.BytesIO(photo)).convert("RGB").resize(CAMERA, Image.Resampling.LANCZOS).save(
        stream, "JPEG", quality=90
    )
    return stream.getvalue()


def main() -> int:
    """Print the rows."""
    tune_process()
    torch.set_num_threads(1)
    for row in measure():
        print(
            f"{row.ratio:6.2f} × ({row.low:.2f}–{row.high:.2f})  {row.what}, against {row.against}: "
            f"{row.per_second:.1f} pictures per second of one core",
            flush=True,
        )
    cores = os.cpu_count() or 1
    print(f"{cores} workers at once: each {measure_cores(cores, MODEL):.0%} as fast as one alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
