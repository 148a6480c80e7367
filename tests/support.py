"""What tests share and import by name: painted pictures, their captions, and the app as a program of its own.

Picture number `seed` has a left and a right half of two colours, and its captions name them, so a
model can learn which belongs to which. No two of the first 64 pictures look or read alike.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parent.parent
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


@dataclass(frozen=True)
class Server:
    address: str
    pid: int
    log: Path  # what it has printed


@contextlib.contextmanager
def serve(log: Path, *arguments: object, program: Path = ROOT / "app.py", **more: str) -> Iterator[Server]:
    """`app.py` with these arguments, as a program of its own, while the block runs."""
    port = free_port()
    command = [sys.executable, program, "--port", port, *arguments]
    with log.open("w") as out:
        process = subprocess.Popen([*map(str, command)], stdout=out, stderr=out, env=environment(**more))
        try:
            for _ in range(1200):
                assert process.poll() is None, log.read_text()
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield Server(f"http://127.0.0.1:{port}", process.pid, log)
        finally:
            process.kill()
            process.wait()
