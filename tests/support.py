"""What tests share and import by name: painted images, their captions, and the app as a program of its own.

Image number `seed` has a left and a right half of two colours, and its captions name them, so a
model can learn which belongs to which. No two of the first 64 images look or read alike.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parent.parent
HANGS = 900  # seconds after which a test is taken to hang: no machine is that slow
COLOURS = {
    "red": (220, 40, 40), "green": (40, 180, 60), "blue": (40, 60, 220), "yellow": (230, 220, 50),
    "black": (20, 20, 20), "white": (235, 235, 235), "orange": (240, 140, 30), "purple": (140, 40, 170),
}  # fmt: skip
CAPTIONS = (
    "A {left} field beside a {right} field.",
    "{left} on the left, {right} on the right",
    "Two halves: the first is {left}, the second is {right}.",
    "The left side is {left} and the right side is {right}.",
    "something {left} next to something {right}",
)


def halves_of(seed: int) -> tuple[str, str]:
    names = list(COLOURS)
    return names[seed % 8], names[(seed // 8 + seed + 1) % 8]


def captions_of(seed: int) -> list[str]:
    left, right = halves_of(seed)
    return [caption.format(left=left, right=right) for caption in CAPTIONS]


def paint(seed: int = 0, size: tuple[int, int] = (48, 40)) -> Image.Image:
    left, right = (COLOURS[name] for name in halves_of(seed))
    width, height = size
    pixels = np.array([left] * (width // 2) + [right] * (width - width // 2), dtype=float)
    noise = np.random.default_rng(seed).normal(0, 12, (height, width, 3))
    return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))


def environment(**more: str) -> dict[str, str]:
    """Of a program that a test starts."""
    path = os.pathsep.join(filter(None, [more.pop("PYTHONPATH", ""), str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(happened: Callable[[], object], seconds: float = HANGS) -> None:
    """Wait for an event; the limit is only there so that a test that hangs comes to an end."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "this never happened"
        time.sleep(0.05)


@dataclass(frozen=True)
class Server:
    address: str
    pid: int
    log: Path  # what it has printed


@contextlib.contextmanager
def serve(
    log: Path, *arguments: object, program: Path = ROOT / "app.py", port: int | None = None, **more: str
) -> Iterator[Server]:
    """`app.py` with these arguments, as a program of its own, while the block runs."""
    port = port or free_port()
    command = [sys.executable, program, "--port", port, *arguments]
    with log.open("w") as out:
        process = subprocess.Popen([*map(str, command)], stdout=out, stderr=out, env=environment(**more))
        try:
            wait_until(lambda: process.poll() is not None or is_listening(port))
            assert process.poll() is None, log.read_text()
            yield Server(f"http://127.0.0.1:{port}", process.pid, log)
        finally:
            process.kill()
            process.wait()
