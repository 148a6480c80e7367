"""Sentences that are empty, endless, in no language or in a markup language: answered, or refused with a reason."""

import json
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import gradio as gr
import hostile
import pytest
import torch

from vse_demo import VSE, ModelConfig, explain
from vse_demo.app.actions import Actions, read_choice
from vse_demo.app.collection import open_service
from vse_demo.app.html import results
from vse_demo.app.html.markup import picture_url
from vse_demo.app.service import Service
from vse_demo.app.turns import Turns
from vse_demo.cli import main
from vse_demo.data import open_dataset
from vse_demo.encoders import SubwordTokenizer, TransformerText, WordTokenizer

# A figure warns of signs that its font lacks, and draws a box instead.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Glyph", "ignore:Matplotlib currently does not support"),
]


@pytest.fixture(scope="module", params=["bigru", "bert"])
def model(request: pytest.FixtureRequest, bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model of each kind."""
    torch.manual_seed(0)
    sizes = {"dim": 12, "backbone": "test_efficientnet", "image_size": 64, "text": request.param}
    if request.param == "bigru":
        made = VSE(ModelConfig(**sizes, word_dim=8), WordTokenizer(["red", "green", "a", "dog"]))
    else:
        settings = TransformerText.read_config(str(bert_folder))
        made = VSE(ModelConfig(**sizes, text_config=settings), SubwordTokenizer.from_pretrained(str(bert_folder)))
    folder = tmp_path_factory.mktemp(request.param) / "model"
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def own_folder(tmp_path_factory: pytest.TempPathFactory, save_picture: Callable[..., Path]) -> Path:
    """Images whose names and captions are all that someone may write."""
    folder = tmp_path_factory.mktemp("hostile") / "mine"
    captions = {}
    for number, text in enumerate(text for text in hostile.TEXTS if text.refused is None):
        name = f"{number} {text.text.encode('utf-8', 'replace').decode()[:60]}.png"
        name = name.replace("/", "∕").replace("\0", "")
        save_picture(folder / name, number)
        captions[name] = [text.text, f"picture {number}"]
    save_picture(folder / os.fsdecode(b"latin-1 \xe9\xff.png"), 60)  # a name that is no UTF-8
    captions[os.fsdecode(b"latin-1 \xe9\xff.png")] = ["picture of an odd name"]
    (folder / "captions.json").write_text(json.dumps(captions))
    return folder


@pytest.fixture(scope="module")
def service(model: Path, own_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Service:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VSE_DEMO_CACHE", str(tmp_path_factory.mktemp("cache")))
        service = open_service(own_folder, [model])
        service.gallery()
        service.map()
    return service


class Tags(HTMLParser):
    """The tags of a piece of a page, and all their attributes."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}
        self.links += [value or "" for name, value in attributes if name == "href"]


def is_harmless(piece: str) -> bool:
    """Whether nothing in it can run, leave the page or be taken for a template."""
    seen = Tags(piece)
    piece.encode()
    acts = [name for name in seen.attributes if name.startswith("on") or name in ("srcdoc", "action")]
    leads = [link for link in seen.links if not link.startswith("pictures/")]
    return not acts and not leads and not {*seen.tags} & {"script", "iframe", "object", "style"} and "${" not in piece


@pytest.mark.parametrize("text", hostile.TEXTS, ids=lambda text: text.title)
def test_every_sentence_is_answered_or_refused_with_a_reason(service: Service, text: hostile.Text) -> None:
    found = Actions(service).find(text.text, None, "", 5, "given", "given", Turns(), 1, lambda *_, **__: None)
    if text.refused is None:
        (cards, *_), (_, why, mark) = found
        assert Tags(cards).tags.count("img") == 5
        assert is_harmless(cards)
        assert is_harmless(why)
        assert "Why" in why
        json.dumps(mark, ensure_ascii=False).encode()  # as the page gets it
    else:
        with pytest.raises(ValueError, match=text.refused):
            next(found)


def test_every_name_and_caption_comes_back_from_its_card(service: Service) -> None:
    cards = results.sample_cards([*service.files], service.describe)
    for packed, name in zip(re.findall(r'data-item="([^"]*)"', cards), service.files, strict=True):
        event = gr.SelectData(None, {"index": 0, "value": {"item": packed}})
        assert read_choice(event)[0] == name


def test_every_picture_can_be_shown_in_large(service: Service) -> None:
    for name in service.files:
        large = results.large_view(service.photo(name), service.describe(name))
        assert is_harmless(large)
        assert Tags(large).links == [picture_url(name)]


def test_captions_are_nothing_but_text(service: Service) -> None:
    actions = Actions(service)
    image = service.encode_image(actions.read(actions.samples[0]))
    cards = results.caption_cards(service.find_captions(image, k=999), results.Asked())
    assert is_harmless(cards)
    assert Tags(cards).tags.count("button") > 30
    assert is_harmless(results.sample_cards(actions.samples, service.describe))


@pytest.mark.parametrize("value", [None, 5, ["a dog"], {"a": 1}, b"a dog"])
def test_what_is_no_sentence_is_refused_like_an_empty_one(service: Service, value: object) -> None:
    with pytest.raises(ValueError, match=hostile.EMPTY):
        service.encode_text(value)


@pytest.mark.parametrize("text", [text for text in hostile.TEXTS if not text.refused], ids=lambda text: text.title)
def test_words_and_parts_are_as_many_and_add_up(service: Service, text: hostile.Text) -> None:
    gallery = service.gallery()
    why = explain(gallery.model, service.file(gallery.names[0]), text.text)
    assert len(why.words) == len(why.text.parts) <= 64
    assert float(why.text.parts.sum()) == pytest.approx(why.score, abs=1e-4)


def test_every_caption_is_found_again(service: Service) -> None:
    """Each is a sentence like any other: nothing of it is lost but control characters and blanks around it."""
    for text in hostile.TEXTS:
        if text.refused is None:
            found = service.find_images(service.encode_text(text.text), k=len(service.files))
            assert sum(bool(each.right) for each in found) >= 1, text.title


def test_names_and_captions_are_nothing_but_text_on_the_map(service: Service) -> None:
    template = Actions(service).map("given")
    value = re.compile(r"\$\{value\.\w+\}")
    assert is_harmless(value.sub("", template))
    assert "{{" not in template
    assert {"svg", "circle"} <= {*Tags(template).tags}


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_the_shell_prints_every_name_and_no_control_character(
    model: Path, own_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: list[str]
) -> None:
    gallery = tmp_path / "gallery"
    assert main(["index", "--model", str(model), "--data", str(own_folder), "--gallery", str(gallery)]) == 0
    capsys.readouterr()
    photo = next(path for path in own_folder.iterdir() if path.suffix == ".png")
    for query in (["a dog"], ["--image", str(photo)]):
        assert main(["search", *query, "--gallery", str(gallery), "-k", "99", *as_json]) == 0
        printed = capsys.readouterr().out
        printed.encode()
        assert not [sign for sign in printed if ord(sign) < 32 and sign != "\n"]
        assert len(printed) > 1000


@pytest.mark.parametrize("text", hostile.TEXTS, ids=lambda text: text.title)
def test_a_search_in_the_shell_never_shows_a_traceback(
    model: Path, own_folder: Path, tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str], text: hostile.Text,
) -> None:  # fmt: skip
    gallery = tmp_path_factory.getbasetemp() / f"gallery of {model.parent.name}"
    if not gallery.exists():
        main(["index", "--model", str(model), "--data", str(own_folder), "--gallery", str(gallery)])
    capsys.readouterr()
    code = main(["search", f" {text.text}", "--gallery", str(gallery)])
    output = capsys.readouterr()
    assert code == (1 if not text.text.strip() else 0)
    assert len(output.out.splitlines()) == (0 if code else 5)
    assert output.err == ("" if code == 0 else f"vse-demo: a sentence is empty: {' ' + text.text!r}\n")


def test_a_caption_of_control_characters_is_no_caption(own_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "captions.json").write_text(json.dumps({"a.png": ["\0\x1b"]}))
    with pytest.raises(ValueError, match=r"a caption must be a sentence, not '\\x00\\x1b'"):
        open_dataset(tmp_path)
