"""Many users at once against the app on this machine: how long they wait, and that every good request is answered.

    python scripts/load_test.py --users 50 --seconds 120 --json tests/load.json

Starts `app.py` itself on loopback. Every user asks one thing after the other: sentences, pictures, reasons, and now and
then something bad, which must be refused with a sentence.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SENTENCES = [
    "a dog on the beach",
    "people in the snow",
    "a red car",
    "two birds on a branch",
    "a plate of food",
    "boats",
]
PATIENCE = 600  # seconds after which a user is taken to wait for ever
MODELS = ["grid-minilm", "grid-bigru", "ensemble"]
FILE = {"meta": {"_type": "gradio.FileData"}}
BAD: dict[str, tuple[str, list[Any], str]] = {  # a request and a piece of the sentence that refuses it
    "empty": ("find_images", ["", "grid-minilm"], "Type a sentence first"),
    "long": ("find_images", ["x" * 100_000, "grid-minilm"], "characters"),
    "no picture": ("find_captions", [None, "grid-minilm"], "Give a picture first"),
    "no model": ("find_images", ["a dog", "clip"], "unknown model"),
    "an address": ("find_captions", [{"path": "http://203.0.113.1/x.png", **FILE}, "grid-minilm"], "error"),
    "a secret": ("find_captions", [{"path": "/etc/passwd", **FILE}, "grid-minilm"], "error"),
}  # fmt: skip


@dataclass
class Tally:
    """What all users have seen."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"sentence": [], "picture": [], "reasons": []})
    refused: Counter[str] = field(default_factory=Counter)  # bad requests, as they should be
    wrong: list[str] = field(default_factory=list)  # good ones without an answer, bad ones with one
    lock: threading.Lock = field(default_factory=threading.Lock)


class User(threading.Thread):
    """Asks one thing after the other as long as there is `more` to ask, given how many it has asked."""

    def __init__(self, address: str, seed: int, photos: list[Path], more: Callable[[int], bool], tally: Tally):
        super().__init__(daemon=True)
        self.address, self.photos, self.more, self.tally = address, photos, more, tally
        self.random = random.Random(seed)

    def run(self) -> None:
        asked = 0
        while self.more(asked):
            asked += 1
            begun, draw = time.monotonic(), self.random.random()
            try:
                kind = self.ask_badly() if draw < 0.15 else self.ask(draw)
                with self.tally.lock:
                    if kind in self.tally.seconds:
                        self.tally.seconds[kind].append(time.monotonic() - begun)
                    else:
                        self.tally.refused[kind] += 1
            except Exception as error:  # whatever it is, it is a fault
                with self.tally.lock:
                    self.tally.wrong.append(f"{type(error).__name__}: {error}"[:300])
            time.sleep(self.random.uniform(0.5, 2))  # people look at what they get

    def ask(self, draw: float) -> str:
        model = self.random.choice(MODELS)
        if draw < 0.6:
            answer, count, kind = self.call("find_images", [self.random.choice(SENTENCES), model]), 5, "sentence"
        elif draw < 0.9:
            answer, count, kind = self.call("find_captions", [self.upload(), model]), 5, "picture"
        else:
            answer, count, kind = self.call("explain", [self.upload(), "a dog", model]), 1, "reasons"
        if "event: complete" not in answer or answer.count('"item"') + answer.count('"score"') < count:
            raise AssertionError(f"a good {kind} had no answer: {answer[:200]}")
        return kind

    def ask_badly(self) -> str:
        name = self.random.choice([*BAD, "no photo"])
        if name == "no photo":
            endpoint, data, reason = (
                "find_captions",
                [self.upload(b"no picture at all"), "grid-minilm"],
                "is not an image",
            )
        else:
            endpoint, data, reason = BAD[name]
        answer = self.call(endpoint, data)
        if "event: error" not in answer or reason not in answer:
            raise AssertionError(f"{name} was not refused: {answer[:200]}")
        return name

    def call(self, endpoint: str, data: list[Any]) -> str:
        place = f"{self.address}/gradio_api/call/{endpoint}"
        body = json.dumps({"data": data}).encode()
        request = urllib.request.Request(place, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            event = json.load(answer)["event_id"]
        with urllib.request.urlopen(f"{place}/{event}", timeout=PATIENCE) as answer:
            return answer.read().decode()

    def upload(self, content: bytes | None = None) -> dict[str, Any]:
        content = self.random.choice(self.photos).read_bytes() if content is None else content
        edge = uuid.uuid4().hex
        head = f'--{edge}\r\nContent-Disposition: form-data; name="files"; filename="photo.jpg"\r\n\r\n'
        body = head.encode() + content + f"\r\n--{edge}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={edge}"}
        request = urllib.request.Request(f"{self.address}/gradio_api/upload", body, kind)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return {"path": json.load(answer)[0], **FILE}


def resident(pid: int) -> float:
    """Memory of a process, in megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def run(users: int, seconds: float, requests: int | None = None) -> dict[str, Any]:
    """Start the app, let many users ask, and tell how it went.

    Args:
        users: How many ask at once.
        seconds: How long they go on.
        requests: How many things each asks, however long that takes, instead.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    photos = sorted((ROOT / "assets" / "gallery" / "images").glob("*.jpg"))[:40]
    with tempfile.TemporaryDirectory() as place, (Path(place) / "log").open("w") as log:
        settings = {**os.environ, "PYTHONPATH": str(ROOT), "GRADIO_TEMP_DIR": f"{place}/uploads"}
        server = subprocess.Popen(
            [sys.executable, str(ROOT / "app.py"), "--port", str(port)], stdout=log, stderr=log, env=settings
        )
        try:
            wait_for(address, server)
            warm = User(address, 0, photos, lambda _: False, Tally())
            for model in MODELS:  # each is loaded once, before anything is measured
                warm.call("explain", [warm.upload(), "a dog", model])
                warm.call("find_captions", [warm.upload(), model])
            tally, memory, end = Tally(), [resident(server.pid)], time.monotonic() + seconds

            def more(asked: int) -> bool:
                return time.monotonic() < end if requests is None else asked < requests

            crowd = [User(address, seed, photos, more, tally) for seed in range(users)]
            for user in crowd:
                user.start()
            while any(user.is_alive() for user in crowd) and time.monotonic() < end + PATIENCE:
                time.sleep(1)
                memory.append(resident(server.pid))
            if any(user.is_alive() for user in crowd):
                tally.wrong.append("a user waits for ever")
        finally:
            server.kill()
            server.wait()
    return report(users, seconds, tally, memory)


def wait_for(address: str, server: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(address, timeout=PATIENCE).close()
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise SystemExit("the app did not start")


def report(users: int, seconds: float, tally: Tally, memory: list[float]) -> dict[str, Any]:
    everything = sorted(value for values in tally.seconds.values() for value in values)
    half = len(memory) // 2
    return {
        "users": users,
        "seconds": round(seconds),
        "cores": os.cpu_count(),
        "answered": {kind: len(values) for kind, values in tally.seconds.items()},
        "refused": dict(sorted(tally.refused.items())),
        "wrong": tally.wrong,
        "p50": round(statistics.median(everything), 2),
        "p95": round(everything[int(0.95 * (len(everything) - 1))], 2),
        "memory_mb": {"first": round(memory[0]), "middle": round(memory[half]), "last": round(memory[-1])},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    chosen = parser.parse_args()
    figures = run(chosen.users, chosen.seconds)
    print(json.dumps(figures, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(bool(figures["wrong"]))
