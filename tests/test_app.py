"""The demo as people and programs meet it: a real server, its API, and a real browser."""

import asyncio
import contextlib
import csv
import gc
import io
import json
import re
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from gradio_client import Client, handle_file
from support import HANGS, ROOT, Server, free_port, paint, serve, wait_until

from vse_demo import VSE, ModelConfig
from vse_demo.app import launch
from vse_demo.app import page as app_page
from vse_demo.app.actions import IMAGE_LABEL
from vse_demo.app.credits import read_credits
from vse_demo.encoders import WordTokenizer
from vse_demo.shipped import gallery_file, load_shipped

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'")
Browser, Page, expect = playwright.Browser, playwright.Page, playwright.expect
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]  # of gradio_client
CAPTION = app_page.EXAMPLES[-1]  # of the gallery
FAR = "quarterly revenue of a software company"  # nothing of the gallery is like this
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
WATCH_SHIFTS = """
window.shift = 0;
new PerformanceObserver(list => { for (const each of list.getEntries()) window.shift += each.value; })
  .observe({ type: 'layout-shift', buffered: true });
"""

WHEN_CALM = """async () => {  // the sum of all shifts, when two frames in a row were drawn alike
  const frame = () => new Promise(requestAnimationFrame);
  for (let before = ''; before !== document.body.innerHTML; await frame(), await frame()) {
    before = document.body.innerHTML;
  }
  return window.shift;
}"""
OVERLAPS = """() => {  // pairs of parts of the page that lie on each other
  const kinds = 'h1, #head p, #head .block, [role=tab], .search input, .search button, .label-wrap, .gallery-item, '
    + '.head:has(.tools) > *, .note, .card, .more, .words, figure, footer';
  const parts = [...document.querySelectorAll(kinds)]
    .filter(each => each.checkVisibility({ visibilityProperty: true }));
  const boxes = new Map(parts.map(each => [each, each.getBoundingClientRect()]));
  const overlap = (one, other) => Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1
    && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 1;
  return parts.flatMap((one, number) => parts.slice(number + 1)
    .filter(other => !one.contains(other) && !other.contains(one) && overlap(boxes.get(one), boxes.get(other)))
    .map(other => [one, other].map(each => each.outerHTML.slice(0, 120))));
}"""
CONTRAST = """(element, part) => {  // of its text with what is behind it, as WCAG measures it
  const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(each => each / 255)
    .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, number) => sum + [0.2126, 0.7152, 0.0722][number] * each, 0);
  let behind = element;
  while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
  const both = [getComputedStyle(element, part).color, getComputedStyle(behind).backgroundColor].map(light);
  return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
}"""
FAINT = """() => {  // texts of a smaller contrast than 4.5 with what is behind them, all opacities included
  const parse = colour => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number), scale = colour.startsWith('color(') ? 255 : 1;
    return [r * scale, g * scale, b * scale, a];
  };
  const over = (top, below) => [0, 1, 2].map(n => top[n] * top[3] + below[n] * (1 - top[3])).concat(1);
  const light = colour => colour.slice(0, 3).map(each => each / 255)
    .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, number) => sum + [0.2126, 0.7152, 0.0722][number] * each, 0);
  const above = element => element ? [...above(element.parentElement), element] : [];
  const words = element => [...element.childNodes].filter(each => each.nodeType === 3).map(each => each.data).join('');
  const contrast = element => {
    const all = above(element).map(each => getComputedStyle(each)), ink = parse(all.at(-1).color);
    const paper = all.reduce((below, each) => over(parse(each.backgroundColor), below), [255, 255, 255, 1]);
    ink[3] *= all.reduce((product, each) => product * each.opacity, 1);
    const both = [over(ink, paper), paper].map(light);
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  };
  for (const each of document.getAnimations()) each.finish();
  return [...document.querySelectorAll('body *')]
    .filter(each => /[\\p{L}\\d]/u.test(words(each)) && !each.closest('svg, script, style, .unseen'))
    .filter(each => each.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && each.offsetHeight)
    .map(each => [contrast(each).toFixed(2), words(each).trim()]).filter(([measured]) => measured < 4.5);
}"""
HASTE = """() => {  // two frames can be over before the page has drawn what it was told
  const later = window.requestAnimationFrame;
  let early = 2;
  window.requestAnimationFrame = then => early-- > 0 ? then(performance.now()) : later(then);
}"""
FARTHEST = """photos => {  // the number of the one that is farthest from all other dots
  const at = dot => [Number(dot.getAttribute('cx')), Number(dot.getAttribute('cy'))];
  const all = [...photos[0].ownerSVGElement.querySelectorAll(':scope > circle')];
  const room = dot => Math.min(...all.filter(each => each !== dot)
    .map(each => Math.hypot(at(each)[0] - at(dot)[0], at(each)[1] - at(dot)[1])));
  const rooms = photos.map(room);
  return rooms.indexOf(Math.max(...rooms));
}"""
expect.set_options(timeout=1000 * HANGS)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo with all that is shipped, as a program of its own, for MCP clients too."""
    with serve(tmp_path_factory.mktemp("app") / "log", GRADIO_MCP_SERVER="True") as server:
        yield server


@pytest.fixture(scope="module")
def client(demo: Server) -> Iterator[Client]:
    client = Client(demo.address, verbose=False)
    yield client
    client.close()
    del client
    gc.collect()  # what the client leaves open is warned about here, where it is expected


# For programs


def test_a_caption_finds_its_photo(client: Client) -> None:
    found = client.predict(CAPTION, "grid-minilm", api_name="/find_images")
    assert [each["right"] for each in found] == [True, False, False, False, False]
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)


def test_a_photo_finds_its_captions(client: Client) -> None:
    photo = handle_file(gallery_file("001.jpg"))
    found = client.predict(photo, "grid-minilm", api_name="/find_captions")
    assert len(found) == 5
    assert all(each["right"] is not None for each in found)  # it was known again
    assert all(each["author"] and each["licence"] for each in found)


@pytest.mark.parametrize("model", ["grid-minilm", "grid-bigru", "ensemble"])
def test_reasons_add_up_to_the_score(client: Client, model: str) -> None:
    photo = handle_file(gallery_file("001.jpg"))
    why = client.predict(photo, "a yellow bird", model, api_name="/explain")
    assert [each["word"] for each in why["words"]] == ["a", "yellow", "bird"]
    assert sum(each["part"] for each in why["words"]) + why["rest"] == pytest.approx(why["score"], abs=1e-4)
    assert sum(sum(row) for row in why["cells"]) == pytest.approx(why["score"], abs=1e-4)
    gallery = load_shipped(model)
    assert why["score"] == pytest.approx(
        float(gallery.model.similarity([gallery_file("001.jpg")], ["a yellow bird"])), abs=1e-3
    )


def test_errors_are_plain_words(client: Client) -> None:
    with pytest.raises(Exception, match="Type a sentence first"):
        client.predict("  ", "grid-minilm", api_name="/find_images")
    with pytest.raises(Exception, match="Give a picture first"):
        client.predict("", "grid-minilm", api_name="/find_captions")
    with pytest.raises(Exception, match=r"there is no picture 'nothing.jpg' in this collection"):
        client.predict("nothing.jpg", api_name="/find_similar")
    with pytest.raises(Exception, match="k must be a whole number from 1 to 500, not 0"):
        client.predict("a dog", k=0, api_name="/find_images")
    with pytest.raises(Exception, match="unknown model 'clip'; choose one of"):
        client.predict("a dog", "clip", api_name="/find_images")


def test_pictures_come_with_address_and_credit(client: Client, demo: Server) -> None:
    [best] = client.predict("a bird", k=1, api_name="/find_images")
    assert {"file", "url", "captions", "title", "author", "licence", "source", "changes"} <= set(best)
    assert best["author"]
    assert best["url"].startswith(demo.address)
    with urllib.request.urlopen(best["url"]) as answer:
        assert answer.read() == gallery_file(best["item"]).read_bytes()


def test_lists_get_lists_of_answers(client: Client) -> None:
    found = client.predict(["a bird", "a boat"], k=3, api_name="/find_images")
    assert [len(each) for each in found] == [3, 3]
    assert found[1] == client.predict("a boat", k=3, api_name="/find_images")
    similar = client.predict(["001.jpg", "002.jpg"], k=2, api_name="/find_similar")
    assert [len(each) for each in similar] == [2, 2]
    assert "001.jpg" not in [each["item"] for each in similar[0]]  # not itself


def test_vectors_are_those_of_the_search(client: Client) -> None:
    vectors = client.predict("a bird", "001.jpg", api_name="/embed")
    score = sum(a * b for a, b in zip(vectors["sentence"], vectors["image"], strict=True))
    assert score == pytest.approx(client.predict("001.jpg", "a bird", api_name="/explain")["score"], abs=1e-4)


def test_only_five_functions_are_for_programs(client: Client) -> None:
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(named) == {"/find_images", "/find_similar", "/find_captions", "/explain", "/embed"}


def test_the_example_for_programs_in_the_readme_runs(demo: Server) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    [example] = [block for block in blocks if "gradio_client" in block]
    assert "http://127.0.0.1:7860" in example
    example = example.replace("http://127.0.0.1:7860", demo.address).replace("photo.jpg", str(gallery_file("001.jpg")))
    names: dict[str, object] = {}
    exec(example, names)
    names["client"].close()  # type: ignore[attr-defined]


def test_an_mcp_client_finds_the_tools_and_can_search(demo: Server) -> None:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async def ask() -> tuple[dict[str, str], str]:
        async with (
            streamablehttp_client(f"{demo.address}/gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = {tool.name: tool.description or "" for tool in (await session.list_tools()).tools}
            found = await session.call_tool("find_images", {"sentence": CAPTION, "model": "grid-minilm"})
            return tools, "".join(getattr(part, "text", "") for part in found.content)

    tools, answer = asyncio.run(ask())
    assert set(tools) == {"find_images", "find_similar", "find_captions", "explain", "embed"}
    assert tools["find_images"].startswith("Find the k pictures nearest to an English sentence")
    assert [each["right"] for each in json.loads(answer)] == [True, False, False, False, False]


# For people


@pytest.fixture
def page(browser: Browser, demo: Server) -> Iterator[Page]:
    """A fresh page of the demo with its first results."""
    yield from watched(browser, demo.address, viewport=DESKTOP)


@pytest.fixture
def phone(browser: Browser, demo: Server) -> Iterator[Page]:
    """The same on a phone, in the dark."""
    yield from watched(browser, f"{demo.address}/?__theme=dark", viewport=PHONE, is_mobile=True, has_touch=True)


def watched(browser: Browser, address: str, **settings: object) -> Iterator[Page]:
    """A page that may ask nobody else for anything; none of its scripts may fail."""
    outside: list[str] = []
    failed: list[str] = []
    context = browser.new_context(**settings)
    page = context.new_page()
    page.set_default_timeout(1000 * HANGS)
    page.on("request", lambda request: outside.append(request.url))
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.add_init_script(WATCH_SHIFTS)
    page.goto(address)
    expect(page.locator("#found-pictures img")).to_have_count(5)
    yield page
    context.close()
    origin = re.match(r"\w+://[^/]+", address)
    assert origin
    assert not [url for url in outside if not url.startswith((origin[0], "data:", "blob:"))]
    assert not failed


def search(page: Page, sentence: str) -> None:
    page.get_by_label("A sentence").fill(sentence)
    page.keyboard.press("Enter")
    expect(page.locator("#found-pictures .head")).to_contain_text(f"“{sentence}”")


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def test_a_first_search_is_there_from_the_start(page: Page) -> None:
    expect(page.locator("#found-pictures .head")).to_contain_text(app_page.EXAMPLES[0])
    expect(page.get_by_text("Why 0.").filter(visible=True)).to_be_visible()
    expect(page.get_by_label("A sentence")).to_have_value("")


def test_typing_a_sentence_shows_five_pictures_and_why(page: Page) -> None:
    search(page, "a bird on a branch")
    cards = page.locator("#found-pictures .card")
    expect(cards).to_have_count(5)
    scores = [float(text) for text in page.locator("#found-pictures .score").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    expect(page.locator(".reasons .head strong").filter(visible=True)).to_have_text(f"Why {scores[0]:.2f}?")
    assert words_of(page) == ["a", "bird", "on", "a", "branch"]
    expect(page.get_by_label("Weight by rank").filter(visible=True)).to_be_visible()
    assert page.locator(".balance").filter(visible=True).inner_text().count("%") == 4
    cards.nth(2).click()
    expect(page.get_by_text(f"Why {scores[2]:.2f}?").filter(visible=True)).to_be_visible()
    expect(cards.nth(2)).to_have_attribute("aria-pressed", "true")


def test_the_right_picture_is_ticked_green_and_the_others_are_crossed_red(page: Page) -> None:
    search(page, CAPTION)
    marks = page.locator("#found-pictures .card .mark")
    expect(marks).to_have_text(["✓its own", *["✗not its own"] * 4])  # not by colour alone
    colours = [marks.nth(n).evaluate("each => getComputedStyle(each).color") for n in (0, 1)]
    (red, green, _), (other_red, other_green, _) = (map(int, re.findall(r"\d+", colour)[:3]) for colour in colours)
    assert green > red
    assert other_red > other_green
    search(page, "something that nobody wrote")
    expect(page.locator("#found-pictures .mark")).to_have_count(0)


def test_an_example_is_a_search(page: Page) -> None:
    page.get_by_text(app_page.EXAMPLES[1]).click()
    expect(page.locator("#found-pictures .head")).to_contain_text(app_page.EXAMPLES[1])
    expect(page.get_by_label("A sentence")).to_have_value(app_page.EXAMPLES[1])


def test_an_empty_search_gets_a_hint(page: Page) -> None:
    page.get_by_label("A sentence").fill("   ")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("Type a sentence first").first).to_be_visible()
    expect(page.locator("#found-pictures .card")).to_have_count(5)
    expect(page.get_by_text("Error", exact=True)).to_have_count(0)  # the results are still good


def test_results_have_alternative_texts_that_describe_them(page: Page) -> None:
    captions = set(load_shipped().captions)
    texts = page.locator("#found-pictures img").evaluate_all("all => all.map(each => each.alt)")
    assert len(set(texts)) == 5
    assert set(texts) <= captions
    missing = page.locator("img:not([alt]), svg[role=img]:not([aria-label], [aria-hidden=true])")
    assert missing.evaluate_all("all => all.map(each => each.outerHTML.slice(0, 200))") == []


def test_everything_can_be_done_with_the_keyboard(page: Page) -> None:
    page.get_by_label("A sentence").focus()
    page.keyboard.type("a boat on the beach")
    page.keyboard.press("Enter")
    expect(page.locator("#found-pictures .head")).to_contain_text("a boat on the beach")
    for _ in range(40):
        if page.evaluate("document.activeElement.matches('#found-pictures .card')"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    score = page.evaluate("document.activeElement.querySelector('.score').innerText")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # one sees where one is
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"Why {score}?")).to_be_visible()
    page.get_by_role("tab", name="Find pictures").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_text("or choose one of these")).to_be_visible()


def test_slash_and_arrows_are_shortcuts(page: Page) -> None:
    page.keyboard.press("/")
    expect(page.get_by_label("A sentence")).to_be_focused()
    cards = page.locator("#found-pictures .card")
    cards.first.focus()
    page.keyboard.press("ArrowRight")
    expect(cards.nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(cards.nth(4)).to_be_focused()
    page.get_by_role("tab", name="Find pictures").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Find captions")).to_be_focused()
    expect(page.locator("#found-captions .card")).to_have_count(5)  # of a picture to begin with
    assert "tab=captions" in page.url


def test_a_result_opens_large_with_its_credit(page: Page) -> None:
    search(page, "a bird on a branch")
    page.locator("#found-pictures .enlarge").first.click()
    large = page.locator("dialog.large")
    expect(large).to_be_visible()
    item = page.locator("#found-pictures .card").first.get_attribute("data-item")
    assert item
    credit = read_credits(gallery_file("001.jpg").parent.parent)[item]
    expect(large.locator(".name")).to_have_text(item)
    expect(large.locator(".credit")).to_contain_text(credit.author)
    expect(large.locator(".credit")).to_contain_text(credit.licence)
    expect(large.locator(".captions li")).to_have_count(5)
    assert large.locator("img").evaluate("each => each.decode().then(() => each.naturalWidth)") > 300
    with page.expect_download() as download:
        large.get_by_text("Download").click()
    assert download.value.suggested_filename == item
    assert Path(download.value.path()).read_bytes() == gallery_file(item).read_bytes()
    page.keyboard.press("ArrowRight")
    second = page.locator("#found-pictures .card").nth(1).get_attribute("data-item")
    expect(large.locator(".name")).to_have_text(str(second))
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()


def test_no_arrow_in_the_large_view_is_lost(page: Page) -> None:
    """Arrows are faster than answers: all of these come before the first one."""
    search(page, "a bird on a branch")
    items = page.locator("#found-pictures .card").evaluate_all("all => all.map(each => each.dataset.item)")
    page.locator("#found-pictures .enlarge").first.click()
    name = page.locator("dialog.large .name")
    expect(name).to_have_text(items[0])
    press = """(dialog, key) => {
        for (const each of [1, 2, 3]) dialog.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
    }"""
    page.locator("dialog.large").evaluate(press, "ArrowRight")
    expect(name).to_have_text(items[3])
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    expect(name).to_have_text(items[1])


def test_a_picture_can_be_opened_again_and_what_comes_late_opens_nothing(page: Page) -> None:
    large, cards = page.locator("dialog.large"), page.locator("#found-pictures .enlarge")
    for _ in range(2):
        cards.first.click()
        expect(large).to_be_visible()
        page.keyboard.press("Escape")
        expect(large).to_be_hidden()
    held: list[playwright.Route] = []
    page.route("**/queue/join*", lambda route: held.append(route), times=1)
    cards.first.click()
    page.keyboard.press("ArrowRight")
    wait_until(lambda: page.evaluate("true") and held)
    page.keyboard.press("Escape")
    held[0].continue_()
    second = page.locator("#found-pictures .card").nth(1).get_attribute("data-item")
    expect(page.locator("#large .name")).to_have_text(str(second))
    expect(large).to_be_hidden()


def test_arrows_are_offered_only_where_they_lead_somewhere(page: Page) -> None:
    page.locator("#found-pictures .enlarge").first.click()
    expect(page.locator("dialog.large .keys")).to_have_text("← → other results, Esc closes")
    page.keyboard.press("Escape")
    page.goto(page.url.split("?")[0] + "?q=a+bird&tab=captions&picture=047.jpg")  # no bird
    page.locator(".enlarge.inline").filter(visible=True).click()
    expect(page.locator("dialog.large .beside")).to_be_hidden()
    expect(page.locator("dialog.large .keys")).to_contain_text("Esc closes")


def test_what_is_wrong_with_an_address_stays_on_the_page(page: Page, demo: Server) -> None:
    page.goto(f"{demo.address}/?like=nothing.jpg")
    said = page.locator("#found-pictures .head")
    expect(said).to_contain_text("there is no picture 'nothing.jpg' in this collection")
    said.get_by_role("button", name="Search without a picture").click()
    expect(page.locator("#found-pictures .card")).to_have_count(5)
    page.goto(f"{demo.address}/?q=-people")
    expect(said).to_contain_text("Say what to look for, not only what to leave out")
    search(page, "a bird on a branch")
    expect(page.locator("#found-pictures .card")).to_have_count(5)


def test_a_file_that_is_no_picture_leaves_the_results_alone(page: Page, demo: Server, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    page.goto(f"{demo.address}/?like=001.jpg")
    head, field = page.locator("#found-pictures .head strong"), page.locator("#ask input[type=file]").first
    expect(head).to_have_text("Nearest to this picture")
    page.get_by_text("Search by a picture, alone or with a sentence").click()
    for _ in range(2):
        field.set_input_files(tmp_path / "bad.jpg")
        expect(page.get_by_text("bad.jpg is not an image").first).to_be_visible()
        expect(field).to_be_attached()  # it is free again
        page.evaluate(WHEN_CALM)
        expect(head).to_have_text("Nearest to this picture")
        assert "like=001.jpg" in page.evaluate("location.href")
        page.get_by_label("Close").filter(visible=True).first.click()
        expect(page.get_by_text("bad.jpg is not an image")).to_have_count(0)
    field.set_input_files(gallery_file("002.jpg"))
    expect(head).to_have_text("Nearest to your picture")
    page.locator("#ask").get_by_label("Remove").first.click()
    expect(page.locator("#found-pictures .head")).to_have_text("The nearest pictures appear here.")


def test_more_captions_can_be_shown(page: Page) -> None:
    open_tab(page, "Find captions")
    cards, head = page.locator("#found-captions .card"), page.locator("#found-captions .head")
    page.locator("#give input[type=file]").first.set_input_files(gallery_file("001.jpg"))
    expect(page.locator(".about .name").filter(visible=True)).to_have_text("001.jpg")
    expect(cards).to_have_count(5)
    head.get_by_role("button", name="20", exact=True).click()
    expect(cards).to_have_count(20)
    expect(page.locator(".about .name").filter(visible=True)).to_have_text("001.jpg")  # it is still about the upload
    expect(head.get_by_role("button", name="20", exact=True)).to_have_attribute("aria-pressed", "true")
    open_tab(page, "The space")
    expect(page.locator("#space .mark")).to_have_text(IMAGE_LABEL)


def test_more_like_this_and_more_results(page: Page) -> None:
    search(page, "a bird on a branch")
    page.locator(".reasons").get_by_text("More like this").first.click()
    head = page.locator("#found-pictures .head")
    expect(head).to_contain_text("Nearest to this picture")
    expect(page.locator("#found-pictures .card")).to_have_count(5)
    assert "like=" in page.url
    head.get_by_role("button", name="20", exact=True).click()
    cards = page.locator("#found-pictures .card")
    expect(cards).to_have_count(20)
    steps = page.evaluate("history.length")
    page.locator(".cards.many").evaluate("each => each.scrollTo(0, each.scrollHeight)")
    expect(cards).to_have_count(40)
    assert page.evaluate("[history.length, new URLSearchParams(location.search).get('k')]") == [steps, "40"]
    items = cards.evaluate_all("all => all.map(each => each.dataset.item)")
    assert len(set(items)) == 40


def test_far_results_stay_open_until_another_sentence(page: Page) -> None:
    search(page, FAR)
    far = page.locator("#found-pictures .far")
    expect(far).not_to_have_attribute("open", "")
    expect(page.locator("#found-pictures ~ .why")).to_be_empty()
    assert page.evaluate("document.documentElement.scrollHeight") <= DESKTOP["height"]  # nothing blank is below
    far.get_by_text("Show the nearest all the same").click()
    far.locator(".card").first.wait_for()
    page.locator("#found-pictures .head").get_by_role("button", name="20", exact=True).click()
    expect(page.locator("#found-pictures .card")).to_have_count(20)
    expect(far).to_have_attribute("open", "")
    search(page, f"{FAR} and more")
    expect(far).not_to_have_attribute("open", "")


def test_what_is_typed_but_not_sent_stays(page: Page) -> None:
    search(page, "a bird on a branch")
    box = page.get_by_label("A sentence")
    box.fill("a boat")
    page.locator("#found-pictures .head").get_by_role("button", name="20", exact=True).click()
    expect(page.locator("#found-pictures .card")).to_have_count(20)
    expect(page.locator("#found-pictures .head strong")).to_have_text("Nearest to “a bird on a branch”")
    expect(box).to_have_value("a boat")


def test_a_typo_is_named_and_repaired(page: Page) -> None:
    search(page, "a baot on the sand by the sea")
    expect(page.locator("#found-pictures .note")).to_contain_text("does not know the word “baot”")
    page.locator("#found-pictures .note button").click()
    expect(page.locator("#found-pictures .head strong")).to_have_text("Nearest to “a boat on the sand by the sea”")
    expect(page.locator("#found-pictures .note")).to_have_count(0)
    expect(page.get_by_label("A sentence")).to_have_value("a boat on the sand by the sea")


def test_a_picture_and_a_sentence_search_together(page: Page) -> None:
    page.goto(page.url.split("?")[0] + "?like=001.jpg")
    head = page.locator("#found-pictures .head strong")
    expect(head).to_have_text("Nearest to this picture")
    search(page, "at night")
    expect(head).to_have_text("Nearest to “at night” and this picture")
    page.locator(".like").get_by_label("Open large: 001.jpg").click()
    expect(page.locator("dialog.large .name")).to_have_text("001.jpg")
    page.keyboard.press("Escape")
    page.get_by_label("Search without this picture").click()
    expect(head).to_have_text("Nearest to “at night”")
    page.get_by_text("Search by a picture, alone or with a sentence").click()
    page.locator("#ask input[type=file]").first.set_input_files(gallery_file("002.jpg"))
    expect(head).to_have_text("Nearest to “at night” and your picture")


def test_without_a_sentence_an_upload_can_be_taken_away(page: Page) -> None:
    page.get_by_text("Search by a picture, alone or with a sentence").click()
    page.locator("#ask input[type=file]").first.set_input_files(gallery_file("002.jpg"))
    head = page.locator("#found-pictures .head")
    expect(head).to_contain_text("Nearest to your picture")
    head.get_by_role("button", name="20", exact=True).click()
    cards = page.locator("#found-pictures .card")
    expect(cards).to_have_count(20)
    expect(head.locator("strong")).to_have_text("Nearest to your picture")
    page.go_back()
    expect(cards).to_have_count(5)
    expect(head.locator("strong")).to_have_text("Nearest to your picture")
    page.locator("#ask").get_by_label("Remove").first.click()
    expect(head).to_have_text("The nearest pictures appear here.")
    assert page.get_by_text("Type a sentence first").count() == 0


def test_the_address_brings_the_same_page_back(page: Page, demo: Server) -> None:
    head, box = page.locator("#found-pictures .head strong"), page.get_by_label("A sentence")
    search(page, "a bird on a branch")
    search(page, "a street at night")
    shared = page.url
    page.go_back()
    expect(head).to_have_text("Nearest to “a bird on a branch”")
    expect(box).to_have_value("a bird on a branch")
    page.goto(f"{shared}&model=grid-bigru&k=20&tab=space")
    expect(page.locator("#space .mark")).to_have_text("a street at night")
    page.reload()
    expect(page.get_by_role("tab", name="The space")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#space .mark")).to_have_text("a street at night")
    open_tab(page, "Find pictures")
    expect(page.locator("#found-pictures .card")).to_have_count(20)
    expect(page.get_by_label("Model").first).to_have_value("BiGRU")
    page.goto(f"{demo.address}/?tab=captions&picture=002.jpg")
    expect(page.locator(".about .name").filter(visible=True)).to_have_text("002.jpg")
    offered = page.locator("#asked-before option").evaluate_all("all => all.map(each => each.value)")
    assert offered == ["a street at night", "a bird on a branch"]  # what was asked before, the last one first


def test_results_can_be_downloaded(page: Page) -> None:
    search(page, CAPTION)
    shown = page.locator("#found-pictures .card").evaluate_all("all => all.map(each => each.dataset.item)")
    rows = {}
    for kind in ("JSON", "CSV"):
        with page.expect_download() as download:
            page.locator("#found-pictures .head").get_by_role("button", name=kind).click()
        text = Path(download.value.path()).read_text(encoding="utf-8")
        rows[kind] = json.loads(text) if kind == "JSON" else list(csv.DictReader(io.StringIO(text)))
        assert [row["item"] for row in rows[kind]] == shown
        assert all(row["author"] for row in rows[kind])
    assert [row["right"] for row in rows["JSON"]] == [True, False, False, False, False]


def test_uploading_a_picture_shows_captions_and_why(page: Page) -> None:
    open_tab(page, "Find captions")
    cards, asked = page.locator("#found-captions .card"), page.locator("#found-captions .cards")
    expect(cards).to_have_count(5)  # of a picture to begin with
    before = asked.get_attribute("data-asked") or ""
    page.locator("#give input[type=file]").first.set_input_files(gallery_file("001.jpg"))
    expect(asked).not_to_have_attribute("data-asked", before)
    expect(page.locator("#found-captions .mark").first).to_be_visible()  # it was known again
    score = cards.nth(1).locator(".score").inner_text()
    cards.nth(1).click()
    expect(page.get_by_text(f"Why {score}?").filter(visible=True)).to_be_visible()


def test_a_tiff_is_shown_and_another_picture_can_take_its_place(page: Page, tmp_path: Path) -> None:
    paint(3, (300, 200)).save(tmp_path / "mine.tif")
    open_tab(page, "Find captions")
    expect(page.locator("#found-captions .card")).to_have_count(5)
    page.locator("#give input[type=file]").first.set_input_files(tmp_path / "mine.tif")
    page.wait_for_function("() => [...document.querySelectorAll('#give .picture-field img')].some(e => e.naturalWidth)")
    page.evaluate(HASTE)
    with page.expect_file_chooser() as chooser:
        page.locator("#give").get_by_label("Upload file").click()
    chooser.value.set_files(gallery_file("001.jpg"))
    expect(page.locator(".about .name").filter(visible=True)).to_have_text("001.jpg")


def test_a_photo_can_be_picked(page: Page) -> None:
    open_tab(page, "Find captions")
    page.locator("#samples .card").nth(1).click()
    expect(page.locator("#found-captions .card")).to_have_count(5)


def test_a_picture_can_be_pasted_and_photographed(browser: Browser, demo: Server) -> None:
    allowed = ["clipboard-read", "clipboard-write", "camera"]
    for page in watched(browser, demo.address, viewport=DESKTOP, permissions=allowed):
        open_tab(page, "Find captions")
        page.evaluate("""async () => {
            const canvas = document.createElement('canvas');
            canvas.width = canvas.height = 64;
            canvas.getContext('2d').fillRect(0, 0, 40, 40);
            const blob = await new Promise(done => canvas.toBlob(done));
            await navigator.clipboard.write([new ClipboardItem({ 'image/png': blob })]);
        }""")
        page.locator("#give").get_by_label("Paste from clipboard").click()
        expect(page.locator("#found-captions .card")).to_have_count(5)
        pasted = page.locator("#found-captions").inner_html()
        page.locator("#give").get_by_label("Remove").first.click()
        expect(page.get_by_text("The nearest captions appear here")).to_be_visible()
        page.locator("#give").get_by_label("Capture from camera").click()
        page.get_by_title("grant webcam access").click()
        page.wait_for_function("() => document.querySelector('video')?.readyState >= 2")  # a frame to capture
        page.get_by_title("capture photo").click()
        expect(page.locator("#found-captions .card")).to_have_count(5)
        assert page.locator("#found-captions").inner_html() != pasted


def test_the_query_is_on_the_map_at_once(page: Page) -> None:
    search(page, "a bird on a branch")
    open_tab(page, "The space")
    mark = page.locator("#space .mark")
    expect(mark).to_have_text("a bird on a branch")
    place = mark.get_attribute("transform")
    page.get_by_label("On the map").fill("a street at night")
    page.keyboard.press("Enter")
    expect(mark).to_have_text("a street at night")
    assert mark.get_attribute("transform") != place
    open_tab(page, "Find pictures")
    expect(page.get_by_label("A sentence")).to_have_value("a street at night")
    open_tab(page, "The space")
    page.reload()
    expect(mark).to_have_text("a street at night")
    expect(page.get_by_label("On the map")).to_have_value("a street at night")
    open_tab(page, "Find captions")
    page.locator("#samples .card").nth(1).click()
    expect(page.locator("#found-captions .card")).to_have_count(5)
    open_tab(page, "The space")
    expect(mark).to_have_text(IMAGE_LABEL)


def test_the_map_shows_what_one_points_at_with_mouse_and_keys(page: Page) -> None:
    open_tab(page, "The space")
    tip = page.locator("#space .tip")
    photo = page.locator("#space circle.picture").nth(20)
    photo.hover(force=True)
    expect(tip.locator("img")).to_be_visible()
    assert tip.inner_text().strip() in load_shipped().captions
    assert page.locator("#space .kin").count() == 5  # its captions
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()
    page.locator("#space svg").focus()
    seen = set()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
        expect(tip).to_be_visible()
        seen.add(tip.inner_text())
    assert len(seen) == 3


def test_one_can_zoom_into_the_map_and_open_its_pictures(page: Page) -> None:
    open_tab(page, "The space")
    expect(page.locator("#space .mark")).to_have_text(app_page.EXAMPLES[0])
    chart, large = page.locator("#space svg"), page.locator("dialog.large")
    whole, middle = "0 0 1000 620", "250 155 500 310"
    page.get_by_label("Zoom in").click()
    expect(chart).to_have_attribute("viewBox", middle)
    box = chart.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    expect(chart).to_have_attribute("viewBox", "500 155 500 310")  # to its edge, not beyond
    expect(large).to_have_count(0)  # dragging opens nothing
    page.get_by_label("Show the whole map").click()
    expect(chart).to_have_attribute("viewBox", whole)

    number = chart.locator("circle.picture").evaluate_all(FARTHEST)
    photo = chart.locator("circle.picture").nth(number)
    name = urllib.parse.unquote(photo.get_attribute("data-item") or "")
    photo.click(force=True)
    expect(large.locator(".name")).to_have_text(name)
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()
    chart.focus()
    page.keyboard.press("+")
    expect(chart).to_have_attribute("viewBox", middle)
    page.keyboard.press("0")
    expect(chart).to_have_attribute("viewBox", whole)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(large).to_be_visible()


def test_how_it_learned_has_curves_and_sliders(page: Page) -> None:
    open_tab(page, "How it learned")
    for title in ("Loss", "K, the number of negatives", "Alignment and uniformity", "Recall on photos held out"):
        expect(page.get_by_label(title, exact=True)).to_be_visible()
    planes = page.locator("#planes")
    expect(planes).to_contain_text("The paper's equation: K = 58 of 128")
    expect(planes).to_contain_text("The authors' code: K = 7 of 128")
    ring = planes.locator(".ring").first
    place = ring.get_attribute("cx"), ring.get_attribute("cy")
    page.get_by_label("number input for Alignment").fill("0")
    page.get_by_label("number input for Uniformity").fill("0")
    page.keyboard.press("Tab")
    expect(planes).to_contain_text("The paper's equation: K = 127 of 128")
    assert (ring.get_attribute("cx"), ring.get_attribute("cy")) != place
    curve = page.get_by_label("Loss", exact=True).inner_html()
    page.get_by_label("BiGRU").click()
    expect(page.get_by_label("Loss", exact=True)).to_be_visible()
    page.wait_for_function("before => document.querySelector('svg[aria-label=Loss]').innerHTML !== before", arg=curve)


def test_the_last_move_of_a_slider_wins(page: Page) -> None:
    """Whatever the order of moves and answers: the first one is on its way when the second one is made."""
    open_tab(page, "How it learned")
    planes, held = page.locator("#planes"), []
    expect(planes).to_contain_text("The paper's equation: K = 58 of 128")
    page.route("**/queue/join*", lambda route: held.append(route), times=1)
    page.get_by_label("number input for Alignment").fill("0")
    wait_until(lambda: page.evaluate("true") and held)
    page.get_by_label("number input for Uniformity").fill("0")
    page.evaluate(WHEN_CALM)
    held[0].continue_()
    expect(planes).to_contain_text("The paper's equation: K = 127 of 128")


def test_another_model_answers_anew(page: Page) -> None:
    open_tab(page, "The space")
    expect(page.locator("#space .mark")).to_have_text(app_page.EXAMPLES[0])
    before, map_before = (
        page.locator("#found-pictures").inner_html(),
        page.locator("#space circle").first.get_attribute("cx"),
    )
    page.get_by_label("Model").first.click()
    page.get_by_role("option", name="both").click()
    page.wait_for_function("old => document.querySelector('#space circle').getAttribute('cx') !== old", arg=map_before)
    assert page.locator("#found-pictures").inner_html() != before
    open_tab(page, "Find pictures")
    names = page.locator(".balance").filter(visible=True).inner_text()
    assert "grid-minilm" in names  # of an ensemble, each member tells how it pooled
    assert "grid-bigru" in names


def test_nothing_jumps(page: Page) -> None:
    """Layout shifts, as browsers measure them: a sum below 0.1 is good.

    On a busy machine the page can arrive in pieces, which is not its fault: it is loaded up to three times.
    """
    loads = [page.evaluate("window.shift")]
    while loads[-1] >= 0.1 and len(loads) < 3:
        page.reload()
        expect(page.locator("#found-pictures .card")).to_have_count(5)
        loads.append(page.evaluate(WHEN_CALM))
    shifts = {"load": min(loads)}
    explained_calmly(page)
    page.evaluate("window.shift = 0")
    search(page, CAPTION)
    page.locator("#found-pictures .card").nth(3).click()
    search(page, "a crowd at a concert")
    shifts["search"] = explained_calmly(page)
    open_tab(page, "Find captions")
    explained_calmly(page)
    page.evaluate("window.shift = 0")  # another tab is another screen
    asked = page.locator("#found-captions .cards")
    before = asked.get_attribute("data-asked") or ""
    page.locator("#samples .card").nth(3).click()
    expect(asked).not_to_have_attribute("data-asked", before)
    shifts["captions"] = explained_calmly(page)
    assert max(shifts.values()) < 0.1, shifts


def explained_calmly(page: Page) -> float:
    """The sum of all shifts, when what is shown is explained and nothing moves any more."""
    expect(page.locator(".reasons:not([aria-busy=true])").filter(visible=True)).to_be_visible()
    return float(page.evaluate(WHEN_CALM))


def test_every_tab_fits_a_phone_in_the_dark(phone: Page) -> None:
    assert phone.evaluate("document.body.classList.contains('dark')")
    for tab in ("Find pictures", "Find captions", "The space", "How it learned"):
        phone.get_by_role("tab", name=tab).tap()
        phone.evaluate(WHEN_CALM)
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    phone.get_by_role("tab", name="The space").tap()
    phone.locator("#space circle.picture").nth(20).tap(force=True)
    expect(phone.locator("#space .tip img")).to_be_visible()
    colour = "each => getComputedStyle(each)"
    text = phone.locator(".key small").evaluate(f"{colour}.color")
    paper = phone.locator(".gradio-container").evaluate(f"{colour}.backgroundColor")
    light, dark = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (text, paper))
    assert light > 400 > 200 > dark


def test_the_label_of_the_mark_does_not_lie_on_its_ring(page: Page, phone: Page) -> None:
    for each in (page, phone):
        open_tab(each, "The space")
        expect(each.locator("#space .mark")).to_have_text(app_page.EXAMPLES[0])
        each.get_by_label("Zoom in").click()
        gap = each.locator("#space .mark").evaluate("""mark => {
            const [ring, label] = [...mark.children].map(part => part.getBoundingClientRect());
            const { strokeWidth } = getComputedStyle(mark.querySelector('circle')), zoom = mark.getScreenCTM().a;
            const edge = parseFloat(strokeWidth) / 2 / 2 * zoom;  // twice as near
            return Math.max(label.left - ring.right, ring.left - label.right) - edge;
        }""")
        assert gap > 0


def test_the_results_of_an_upload_are_on_the_first_screen_of_a_phone(phone: Page) -> None:
    phone.get_by_text("Search by a picture, alone or with a sentence").tap()
    phone.locator("#ask input[type=file]").first.set_input_files(gallery_file("002.jpg"))
    expect(phone.locator("#found-pictures .head")).to_contain_text("Nearest to your picture")
    phone.evaluate(WHEN_CALM)
    first = phone.locator("#found-pictures .card").first.bounding_box()
    assert first
    assert phone.evaluate("scrollY") == 0
    assert first["y"] + first["height"] / 2 < PHONE["height"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_tab_fits_every_width(browser: Browser, demo: Server, theme: str) -> None:
    for page in watched(browser, f"{demo.address}/?__theme={theme}", viewport=DESKTOP):
        assert page.get_by_label("A sentence").evaluate(CONTRAST, "::placeholder") >= 4.5
        page.get_by_text("Search by a picture, alone or with a sentence").click()
        search(page, CAPTION)
        for tab in ("Find pictures", "Find captions", "The space", "How it learned"):
            open_tab(page, tab)
            if tab.startswith("Find"):
                explained_calmly(page)
            page.evaluate(WHEN_CALM)
            assert page.evaluate(FAINT) == [], tab
            for width in (1440, 768, 390):
                page.set_viewport_size({"width": width, "height": 900})
                page.evaluate(WHEN_CALM)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
                assert page.evaluate(OVERLAPS) == [], (tab, width)
        open_tab(page, "Find pictures")
        page.set_viewport_size({"width": 768, "height": 900})
        lines = page.locator("h1").evaluate("each => each.offsetHeight / parseFloat(getComputedStyle(each).lineHeight)")
        assert round(lines) <= 2
        page.locator("#found-pictures .enlarge").first.click()
        expect(page.locator("dialog.large")).to_be_visible()
        assert page.evaluate(FAINT) == []


def test_the_screenshots_of_the_readme_are_there_and_small() -> None:
    shown = re.findall(r"assets/screenshots/[\w.]+", (ROOT / "README.md").read_text(encoding="utf-8"))
    files = sorted((ROOT / "assets" / "screenshots").iterdir())
    assert {ROOT / name for name in shown} == set(files)
    assert sum(file.stat().st_size for file in files) < 1_500_000


# One's own pictures

# The app, but reading a folder stops after 32 images until the file GO is there.
HELD_READING = """
import os, time
from pathlib import Path
from vse_demo.app import launch, service

report = service.Job.report

def held(self, done, total):
    report(self, done, total)
    while done == 32 and not Path(os.environ["GO"]).exists():
        time.sleep(0.05)

service.Job.report = held
launch.main()
"""

# The app, but a function that finds its name in the file HOLD takes that away, makes HELD, and waits for GO.
HELD_ANSWER = """
import os, time
from pathlib import Path
from vse_demo.app import launch, service

hold, held, go = (Path(os.environ["PLACE"]) / name for name in ("HOLD", "HELD", "GO"))

def later(function):
    def call(*arguments):
        if hold.exists() and hold.read_text() == function.__name__:
            hold.unlink()
            held.touch()
            while not go.exists():
                time.sleep(0.05)
        return function(*arguments)
    return call

for name in ("explain", "find_captions"):
    setattr(service.Service, name, later(getattr(service.Service, name)))
launch.main()
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, write_karpathy: Callable[..., Path]) -> Path:
    """A folder with a small model, images with captions, and the app whose answers can be held."""
    place = tmp_path_factory.mktemp("small")
    torch.manual_seed(0)
    config = ModelConfig(dim=12, backbone="test_efficientnet", image_size=64, word_dim=8)
    VSE(config, WordTokenizer(["red", "green", "left", "right"])).save_pretrained(place / "model")
    write_karpathy(place / "data")
    (place / "held.py").write_text(HELD_ANSWER)
    return place


def serve_small(small: Path, port: int) -> contextlib.AbstractContextManager[Server]:
    settings = {"PLACE": str(small), "VSE_DEMO_CACHE": str(small / "cache")}
    arguments = "--data", small / "data", "--model", small / "model"
    return serve(small / "log", *arguments, program=small / "held.py", port=port, **settings)


@contextlib.contextmanager
def held(place: Path, what: str = "explain") -> Iterator[None]:
    """The first request that is made in the block is answered after it, as far as the service has to do `what`."""
    for name in ("HELD", "GO"):
        (place / name).unlink(missing_ok=True)
    (place / "HOLD").write_text(what)
    yield
    (place / "GO").touch()


def explained(page: Page) -> str:
    """What tells one explanation from another: the coloured image and the parts of the words."""
    shown = page.locator(".reasons").filter(visible=True)
    return (
        shown.locator("img").evaluate_all("all => all.map(each => each.src).join()")
        + shown.locator(".words").inner_text()
    )


def choose(page: Page, number: int, kind: str = "pictures") -> str:
    """Choose a card, and wait for its explanation."""
    card = page.locator(f"#found-{kind} .card").nth(number)
    item = card.get_attribute("data-item") or ""
    card.click()
    if kind == "pictures":
        expect(page.locator(".reasons").filter(visible=True)).to_have_attribute("data-item", item)
    else:
        wait_until(lambda: words_of(page) == urllib.parse.unquote(item).split())
    return explained(page)


def words_of(page: Page) -> list[str]:
    """The words whose parts are shown."""
    words = page.locator(".word").filter(visible=True)
    return words.evaluate_all("all => all.map(each => each.firstChild.data)")


def search_and_wait(page: Page, sentence: str) -> None:
    """Results come first, then why the first one matches."""
    search(page, sentence)
    wait_until(lambda: words_of(page) == sentence.split())


def test_the_last_request_wins_and_cards_work_after_a_restart(browser: Browser, small: Path) -> None:
    port = free_port()
    with serve_small(small, port) as server:
        context = browser.new_context(viewport=DESKTOP)
        page = context.new_page()
        page.set_default_timeout(1000 * HANGS)
        streams: set[object] = set()  # of answers, while the page waits for any
        page.on("request", lambda request: streams.add(request) if "/queue/data" in request.url else None)
        for end in ("requestfinished", "requestfailed"):
            page.on(end, lambda request: streams.discard(request))
        page.goto(server.address)
        expect(page.locator("#found-pictures img")).to_have_count(5)
        head = page.locator("#found-pictures .head")

        with held(small):  # a search during a search
            page.get_by_label("A sentence").fill("red left")
            page.keyboard.press("Enter")
            wait_until((small / "HELD").exists)
            search_and_wait(page, "green right")
        choose(page, 1)
        second = choose(page, 2)
        expect(head).to_contain_text("“green right”")  # by now the first search has been answered

        with held(small):  # a card while another one is explained
            page.locator("#found-pictures .card").nth(1).click()
            wait_until((small / "HELD").exists)
            last = choose(page, 4)
        answered(page)
        assert explained(page) == last

        with held(small):  # a search while a card is explained
            page.locator("#found-pictures .card").nth(3).click()
            wait_until((small / "HELD").exists)
            search_and_wait(page, "red right")
            last = explained(page)
        answered(page)
        assert explained(page) == last
        search_and_wait(page, "green right")
        wait_until(lambda: page.evaluate("true") and not streams)  # else the page would see that the server ends

    with serve_small(small, port):  # which knows nothing of this page
        assert choose(page, 2) == second
        open_tab(page, "Find captions")
        choose(page, 2, "captions")
        open_tab(page, "The space")
        expect(page.locator("#space .mark")).to_have_text("green right")  # what was asked for last
        context.close()
    assert "Error" not in (small / "log").read_text()


def test_no_click_is_lost_and_no_reasons_stand_below_other_cards(browser: Browser, small: Path) -> None:
    with serve_small(small, free_port()) as server:
        page = browser.new_page(viewport=DESKTOP)
        page.set_default_timeout(1000 * HANGS)
        page.goto(server.address)
        search_and_wait(page, "red left")
        reasons = page.locator(".reasons").filter(visible=True)
        with held(small):
            search(page, "green right")
            expect(reasons).to_have_attribute("aria-busy", "true")  # they are those of the search before
        wait_until(lambda: words_of(page) == ["green", "right"])
        expect(reasons).not_to_have_attribute("aria-busy", "true")

        open_tab(page, "Find captions")
        choose(page, 2, "captions")
        cards, asked = page.locator("#found-captions .card"), page.locator("#found-captions .cards")
        item, before = cards.nth(1).get_attribute("data-item") or "", asked.get_attribute("data-asked") or ""
        with held(small, "find_captions"):  # a card while others are on their way, the same card among them
            page.locator("#give input[type=file]").first.set_input_files(small / "data" / "images" / "0.jpg")
            wait_until((small / "HELD").exists)
            cards.nth(1).click()
        expect(asked).not_to_have_attribute("data-asked", before)
        expect(page.locator(f'#found-captions .card[data-item="{item}"]')).to_have_attribute("aria-pressed", "true")
        wait_until(lambda: words_of(page) == urllib.parse.unquote(item).split())
        page.close()


def answered(page: Page) -> None:
    """Wait until the server has answered all that was asked: its answers to a page come in their order."""
    open_tab(page, "Find captions")
    cards = page.locator("#found-captions")
    for number in (1, 2):
        before = cards.inner_html()
        page.locator("#samples .card").nth(number).click()
        expect(cards).not_to_have_js_property("innerHTML", before)
    open_tab(page, "Find pictures")


def test_a_folder_is_read_once_with_a_progress_bar(
    browser: Browser, tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    for number in range(96):
        save_picture(tmp_path / "mine" / f"{number}.png", number)
    settings = {"VSE_DEMO_CACHE": str(tmp_path / "cache"), "GO": str(tmp_path / "go")}
    program = tmp_path / "held.py"
    program.write_text(HELD_READING)
    for start in ("first", "second"):
        log = tmp_path / f"{start}.log"
        with serve(log, "--data", tmp_path / "mine", program=program, **settings) as server:
            page = browser.new_page(viewport=DESKTOP)
            page.set_default_timeout(1000 * HANGS)
            page.goto(server.address)
            if start == "first":
                expect(page.get_by_text("Getting to know the pictures").first).to_be_visible()
                expect(page.get_by_text("32/96").first).to_be_visible()  # as far as it is until `go` is there
                page.get_by_label("A sentence").fill("an early bird")
                page.keyboard.press("Enter")
                (tmp_path / "go").touch()
                expect(page.locator("#found-pictures .head")).to_contain_text("an early bird")
                anyway = page.get_by_text("Show the nearest all the same")
                if anyway.count():  # these pictures are only paint
                    anyway.click()
                choose(page, 1)  # the search that the page begins with has been answered, and is not shown
                expect(page.locator("#found-pictures .head")).to_contain_text("an early bird")
            expect(page.locator("#found-pictures img")).to_have_count(5)
            assert page.get_by_role("tab", name="Find captions").count() == 0  # it has none
            alts = page.locator("#found-pictures img").evaluate_all("all => all.map(each => each.alt)")
            assert all(alt.endswith(".png") for alt in alts)
            page.close()
        assert ("96/96" in log.read_text()) == (start == "first")  # the bar in the terminal


def test_a_folder_or_model_that_is_none_is_refused(start_python: Callable[..., object], tmp_path: Path) -> None:
    for option, message in (("--data", "is not a folder"), ("--model", "is not a folder with a model")):
        process = start_python(ROOT / "app.py", option, tmp_path / "nowhere")
        assert message in process.communicate()[1]  # type: ignore[attr-defined]
        assert process.returncode == 1  # type: ignore[attr-defined]


def test_the_app_refuses_a_gradio_whose_fetching_it_cannot_block(
    start_python: Callable[..., object], tmp_path: Path
) -> None:
    program = tmp_path / "other_gradio.py"
    program.write_text(
        "from gradio import processing_utils\n"
        "from vse_demo.app import launch\n"
        "del processing_utils.async_ssrf_protected_get\n"
        "launch.main()\n"
    )
    process = start_python(program)
    errors = process.communicate()[1]  # type: ignore[attr-defined]
    assert process.returncode == 1  # type: ignore[attr-defined]
    assert re.fullmatch(r"app.py: Gradio 6[\d.]+ has no processing_utils.async_ssrf_protected_get, .*\n", errors)


def test_it_starts_however_long_its_first_page_takes(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(
        "from gradio import networking\n"
        "from vse_demo.app import launch\n"
        "networking.url_ok = lambda url: False\n"
        "launch.main()\n"
    )
    with serve(tmp_path / "log", program=program) as server:
        wait_until(lambda: "Running on local URL" in server.log.read_text())
        with urllib.request.urlopen(server.address) as answer:
            assert answer.status == 200


def test_a_space_installs_what_the_app_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {*project["dependencies"], *project["optional-dependencies"]["app"]}
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert {line for line in lines if not line.startswith("#")} == needed


def test_a_container_copies_what_there_is() -> None:
    lines = re.findall(r"^COPY (.*)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    copied = {name for line in lines for name in line.split()[:-1]}
    assert {"vse_demo", "assets", "notebooks", "pyproject.toml", "setup.py"} <= copied  # what a wheel is made of
    assert all((ROOT / name).exists() for name in copied)


def test_a_space_can_choose_the_address() -> None:
    """Hugging Face Spaces set GRADIO_SERVER_NAME; an address of our own would hide it."""
    assert launch.read_arguments([]).host is None
    assert launch.read_arguments(["--host", "0.0.0.0"]).host == "0.0.0.0"
