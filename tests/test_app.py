"""The demo as people and programs meet it: a real server, its API, and a real browser."""

import gc
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import serve
from gradio_client import Client, handle_file
from playwright.sync_api import Page, expect

import app
from vse_demo.shipped import gallery_file, load_shipped

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # of gradio_client


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo with all that is shipped, as a program of its own."""
    with serve(tmp_path_factory.mktemp("app") / "log") as server:
        yield server.address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Client]:
    client = Client(address, verbose=False)
    yield client
    client.close()
    del client
    gc.collect()  # what the client leaves open is warned about here, where it is expected


# For programs


def test_a_caption_finds_its_photo(client: Client) -> None:
    gallery = load_shipped()
    found = client.predict(gallery.captions[0], "grid-minilm", api_name="/find_images")
    assert len(found) == 5
    assert {each["right"] for each in found} <= {True, False}
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)


def test_a_photo_finds_its_captions(client: Client) -> None:
    photo = handle_file(gallery_file("001.jpg"))
    found = client.predict(photo, "grid-minilm", api_name="/find_captions")
    assert len(found) == 5
    assert all(each["right"] is not None for each in found)  # it was known again


@pytest.mark.parametrize("model", ["grid-minilm", "grid-bigru", "ensemble"])
def test_reasons_add_up_to_the_score(client: Client, model: str) -> None:
    why = client.predict(handle_file(gallery_file("001.jpg")), "a yellow bird", model, api_name="/explain")
    assert sum(each["part"] for each in why["words"]) == pytest.approx(why["score"], abs=1e-4)
    assert sum(sum(row) for row in why["cells"]) == pytest.approx(why["score"], abs=1e-4)


def test_errors_are_plain_words(client: Client, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="Type a sentence first"):
        client.predict("  ", "grid-minilm", api_name="/find_images")
    with pytest.raises(Exception, match="Give a picture first"):
        client.predict(None, "grid-minilm", api_name="/find_captions")


def test_only_three_functions_are_for_programs(client: Client) -> None:
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(named) == {"/find_images", "/find_captions", "/explain"}


# For people


@pytest.fixture
def page(browser, address: str) -> Iterator[Page]:
    """A fresh page of the demo; it may ask nobody else for anything, and no script of it may fail."""
    outside: list[str] = []
    failed: list[str] = []
    page = browser.new_page(viewport={"width": 1200, "height": 1000})
    page.set_default_timeout(60_000)
    page.on("request", lambda request: outside.append(request.url))
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(address)
    page.get_by_label("A sentence").wait_for()
    yield page
    page.close()
    assert not [url for url in outside if not url.startswith((address, "data:", "blob:"))]
    assert not failed


def test_typing_a_sentence_shows_five_pictures_and_why(page: Page) -> None:
    page.get_by_label("A sentence").fill("a dog runs on the beach")
    page.keyboard.press("Enter")
    expect(page.locator("#found-pictures img")).to_have_count(5)
    expect(page.get_by_alt_text("parts of the picture").first).to_be_visible()
    expect(page.get_by_text("Score 0.").first).to_be_visible()
    page.locator("#found-pictures .thumbnail-item").nth(2).click()
    expect(page.get_by_alt_text("words").first).to_be_visible()


def test_a_caption_is_ticked_and_crossed(page: Page) -> None:
    page.get_by_label("A sentence").fill(load_shipped().captions[0])
    page.keyboard.press("Enter")
    expect(page.locator("#found-pictures img")).to_have_count(5)
    assert page.locator("#found-pictures").get_by_text("❌").count() >= 4


def test_an_example_is_a_search(page: Page) -> None:
    page.get_by_text(app.EXAMPLES[1]).click()
    expect(page.locator("#found-pictures img")).to_have_count(5)
    expect(page.get_by_label("A sentence")).to_have_value(app.EXAMPLES[1])


def test_an_empty_search_gets_a_hint(page: Page) -> None:
    page.get_by_label("A sentence").fill("   ")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Type a sentence first").first).to_be_visible()


def test_uploading_a_picture_shows_captions(page: Page) -> None:
    page.get_by_role("tab", name="Find captions").click()
    page.locator("input[type=file]").first.set_input_files(gallery_file("001.jpg"))
    expect(page.locator("#found-captions input[type=radio]")).to_have_count(5)
    page.locator("#found-captions label").nth(1).click()
    expect(page.get_by_text("Score 0.").last).to_be_visible()


def test_a_photo_can_be_picked(page: Page) -> None:
    page.get_by_role("tab", name="Find captions").click()
    page.locator(".thumbnail-item").filter(visible=True).nth(1).click()
    expect(page.locator("#found-captions input[type=radio]")).to_have_count(5)


def test_pointing_at_the_map_shows_a_photo_and_a_query_has_a_mark(page: Page) -> None:
    page.get_by_label("A sentence").fill("a bird on a branch")
    page.keyboard.press("Enter")
    expect(page.locator("#found-pictures img")).to_have_count(5)
    page.get_by_role("tab", name="The space").click()
    mark = page.locator(".atlas g[data-tip]")
    expect(mark).to_have_attribute("data-tip", "a bird on a branch")
    page.locator(".atlas circle[data-src]").nth(20).hover(force=True)
    expect(page.locator(".atlas .tip img")).to_be_visible()


def test_how_it_learned_has_curves_and_sliders(page: Page) -> None:
    page.get_by_role("tab", name="How it learned").click()
    expect(page.get_by_alt_text("Loss")).to_be_visible()
    expect(page.get_by_text("by the paper's equation").first).to_be_visible()
    page.get_by_label("number input for Alignment").fill("0")
    page.get_by_label("number input for Uniformity").fill("0")
    page.keyboard.press("Tab")
    expect(page.get_by_text("K = 127 of 128 by the paper's equation")).to_be_visible()


def test_another_model_answers_too(page: Page) -> None:
    page.get_by_label("Model").first.click()
    page.get_by_role("option", name="ensemble").click()
    page.get_by_label("A sentence").fill("people walking in the snow")
    page.keyboard.press("Enter")
    expect(page.locator("#found-pictures img")).to_have_count(5)


def test_it_fits_a_phone(browser, address: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(address)
    page.get_by_label("A sentence").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 392
    page.close()


def test_a_folder_that_is_none_is_refused(start_python: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = start_python(app.__file__, "--data", tmp_path / "nowhere")
    assert "is not a folder" in process.communicate()[1]
    assert process.returncode == 1
