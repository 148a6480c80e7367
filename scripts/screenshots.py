"""Take the pictures of the app that the README shows: `python scripts/screenshots.py`.

Starts the app, opens each tab in headless Chromium as a visitor would, and writes
`assets/screenshots/*.webp`. Needs Chromium and `pip install -e ".[test]"`. Look at them before you commit them.
"""

import argparse
import contextlib
import io
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parent.parent
DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
SENTENCE = "A black and tan dog takes a blue ball from a woman's hand."  # of the gallery
QUALITY = 82
HANGS = 300_000  # milliseconds; no machine is that slow


@contextlib.contextmanager
def running_app() -> Iterator[str]:
    """The address of the app, while the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(ROOT / "app.py"), "--port", str(port)])
    try:
        for _ in range(6000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def visit(browser: Browser, address: str, dark: bool = False, phone: bool = False) -> Iterator[Page]:
    """A fresh page with its first results."""
    viewport = PHONE if phone else DESKTOP
    context = browser.new_context(viewport=viewport, is_mobile=phone, has_touch=phone, device_scale_factor=1.5)
    page = context.new_page()
    page.set_default_timeout(HANGS)
    page.goto(f"{address}/?__theme={'dark' if dark else 'light'}")
    expect(page.locator("#found-pictures img")).to_have_count(5, timeout=HANGS)
    expect.set_options(timeout=HANGS)
    yield page
    context.close()


def search(page: Page) -> None:
    page.get_by_label("A sentence").fill(SENTENCE)
    page.keyboard.press("Enter")
    expect(page.locator("#found-pictures .head")).to_contain_text(SENTENCE)
    expect(page.locator(".words").first).to_contain_text(SENTENCE.split()[-1])  # reasons come after results


def find_captions(page: Page) -> None:
    page.get_by_role("tab", name="Find captions").click()
    page.locator("#samples .card").nth(1).click()
    expect(page.locator("#found-captions .card")).to_have_count(5)
    expect(page.locator(".words").filter(visible=True)).to_be_visible()
    page.wait_for_function("() => [...document.querySelectorAll('#samples img')].every(each => each.complete)")


def show_space(page: Page) -> None:
    page.get_by_role("tab", name="The space").click()
    expect(page.locator("#space .mark")).not_to_be_empty()
    page.wait_for_timeout(1500)  # the mark draws the map anew, which would take the tip away
    page.locator("#space circle.picture").nth(150).hover(force=True)
    expect(page.locator("#space .tip img")).to_be_visible()


def show_training(page: Page) -> None:
    page.get_by_role("tab", name="How it learned").click()
    expect(page.get_by_label("Loss", exact=True)).to_be_visible()


SHOTS = {  # name: what is done first, dark, phone
    "find_pictures": (search, False, False),
    "find_captions": (find_captions, False, False),
    "space": (show_space, True, False),
    "learned": (show_training, False, False),
    "phone": (search, True, True),
}


def save(page: Page, path: Path, whole: bool) -> None:
    page.wait_for_timeout(1500)  # for what fades in
    image = Image.open(io.BytesIO(page.screenshot(full_page=whole)))
    image.convert("RGB").save(path, "WEBP", quality=QUALITY, method=6)
    print(f"{path}: {image.width} × {image.height}, {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "assets" / "screenshots")
    parser.add_argument("--only", choices=SHOTS, action="append", help="take this one; may be repeated")
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with running_app() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (prepare, dark, phone) in SHOTS.items():
            if arguments.only and name not in arguments.only:
                continue
            with visit(browser, address, dark, phone) as page:
                prepare(page)
                save(page, out / f"{name}.webp", whole=not phone)
        browser.close()


if __name__ == "__main__":
    main()
