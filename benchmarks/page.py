"""How long does a visitor of the app wait? Measured in Chromium, by the page's own clock.

    python -m benchmarks.page                       # the page
    python -m benchmarks.page --photos FOLDER       # and the first pass over a folder, with all shipped models

The start of the app is a row of `python -m benchmarks.run --only start`. Needs Chromium and `pip install -e ".[test]"`.
"""

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HANGS = 120_000  # milliseconds
SENTENCES = (
    "a dog on the beach", "two people on a bicycle", "a red car in the street", "a child plays football",
    "a train at a station", "a woman with an umbrella", "flowers on a table", "a bird on a branch", "a boat on a lake",
    "snow on a mountain", "a cat asleep on a sofa", "a man playing a guitar", "food on a plate", "a house by the sea",
    "a horse in a field", "a crowd at a concert", "a bridge over a river", "a church in a town", "a girl with a book",
    "people around a fire",
)  # fmt: skip
# From an event to a change of the page that `happened` sees, and to the moment its pictures can be drawn
STOPWATCH = """
window.stopwatch = (type, happened) => new Promise(done => addEventListener(type, event => {
  const began = event.timeStamp, look = new MutationObserver(async () => {
    if (!happened()) return;
    look.disconnect();
    const shown = performance.now(), pictures = [...document.querySelectorAll('#found-pictures img')];
    await Promise.all(pictures.map(each => each.decode().catch(() => {})));
    done([shown - began, performance.now() - began]);
  });
  look.observe(document.body, { childList: true, subtree: true, attributes: true });
}, { capture: true, once: true }));
"""
FIRST = """async () => {
  const pictures = [...document.querySelectorAll('#found-pictures img')];
  await Promise.all(pictures.map(each => each.decode()));
  return performance.now();
}"""


@contextlib.contextmanager
def running_app() -> Iterator[str]:
    """The address of the app, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / "app.py"), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def open_page(browser: Any, address: str) -> tuple[Any, float]:
    """A new visitor's page, and how long its first pictures took, in milliseconds."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(HANGS)
    page.add_init_script(STOPWATCH)
    page.goto(address, wait_until="commit")
    page.wait_for_function("() => document.querySelectorAll('#found-pictures img').length === 5", polling=5)
    first = page.evaluate(FIRST)
    page.wait_for_selector(".reasons")
    return page, first


def search(page: Any, sentence: str) -> tuple[float, float]:
    """Milliseconds from Enter to the results, and to their pictures."""
    page.get_by_label("A sentence").fill(sentence)
    head = "document.querySelector('#found-pictures .head')?.textContent"
    page.evaluate(f"text => {{ window.taken = stopwatch('keydown', () => {head}.includes(text)); }}", sentence)
    page.keyboard.press("Enter")
    results, pictures = page.evaluate("window.taken")
    page.wait_for_function(
        "() => !document.querySelector('.reasons[aria-busy=true]')"
    )  # the next one begins in silence
    return results, pictures


def explain(page: Any, number: int) -> float:
    """Milliseconds from a click on a result to its explanation."""
    card = page.locator("#found-pictures .card").nth(number)
    reasons = "document.querySelector('.why .reasons')?.dataset.item"
    page.evaluate(
        f"item => {{ window.taken = stopwatch('click', () => {reasons} === item); }}", card.get_attribute("data-item")
    )
    card.click()
    return page.evaluate("window.taken")[0]


def measure_page(visits: int = 7) -> dict[str, list[float]]:
    """Milliseconds of each kind of waiting, as often as it was measured; what comes first warms up and is left out."""
    from playwright.sync_api import sync_playwright

    taken: dict[str, list[float]] = {
        what: [] for what in ("page to first pictures", "Enter to results", "Enter to pictures", "click to explanation")
    }
    with running_app() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        taken["page to first pictures"] = [open_page(browser, address)[1] for _ in range(visits + 1)][1:]
        page, _ = open_page(browser, address)
        search(page, "a dog")
        for number, sentence in enumerate(SENTENCES):
            results, pictures = search(page, sentence)
            taken["Enter to results"].append(results)
            taken["Enter to pictures"].append(pictures)
            if page.locator("#found-pictures .card").nth(1).is_visible():  # something was close
                taken["click to explanation"].append(explain(page, 1 + number % 4))
        browser.close()
    return taken


def measure_folder(photos: Path, count: int = 400) -> float:
    """Pictures a second of the first pass over a folder: decoded once, encoded for all shipped models, stored."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "photos"
        folder.mkdir()
        for file in sorted(photos.iterdir())[:count]:
            shutil.copy(file, folder)
        os.environ["VSE_DEMO_CACHE"] = str(Path(place) / "cache")
        from vse_demo.app.collection import load_models
        from vse_demo.app.folder import FolderGalleries
        from vse_demo.data.layouts import open_dataset

        models = load_models()
        galleries = FolderGalleries(lambda: models, open_dataset(folder), Path(place) / "cache")
        began = time.perf_counter()
        seen = len(galleries.get(next(iter(models))))
        return seen / (time.perf_counter() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser("python -m benchmarks.page", description="How long does a visitor wait?")
    parser.add_argument("--photos", type=Path, help="a folder of photos that are new to the app")
    chosen = parser.parse_args(arguments)
    print("| what | median, ms | quartiles | n |\n|---|---|---|---|")
    for what, values in measure_page().items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"| {what} | {middle:.0f} | {low:.0f}–{high:.0f} | {len(values)} |", flush=True)
    if chosen.photos:
        print(f"\n{measure_folder(chosen.photos):.1f} new photos a second, for all shipped models")
    return 0


if __name__ == "__main__":
    sys.exit(main())
