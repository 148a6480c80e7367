"""What programs meet, without a server of its own: plain HTTP, pictures with credit, a folder as all models see it."""

import base64
import html
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient
from support import paint

from vse_demo import VSE, Ensemble, Gallery, ModelConfig, open_dataset
from vse_demo.app.actions import Actions, time_left
from vse_demo.app.collection import open_service
from vse_demo.app.credits import read_credits
from vse_demo.app.folder import FolderGalleries, cached_map
from vse_demo.app.html import results
from vse_demo.app.html.markup import picture_url
from vse_demo.app.html.results import Asked, Note
from vse_demo.app.http import api_routes
from vse_demo.app.map import Sample, compute_map
from vse_demo.app.pictures import picture_routes
from vse_demo.app.queries import MixedQuery, split_minus
from vse_demo.app.service import SearchResult, Service
from vse_demo.app.spelling import Lexicon
from vse_demo.app.turns import Turns
from vse_demo.calibration import calibrate
from vse_demo.encoders import WordTokenizer
from vse_demo.utils.files import FileError

pytestmark = pytest.mark.slow
WORDS = ["red", "green", "blue", "yellow", "black", "white", "left", "right", "the", "on"]


def make_model(seed: int = 0, pooling: str = "adpool") -> VSE:
    torch.manual_seed(seed)
    config = ModelConfig(dim=16, backbone="test_efficientnet", image_size=64, word_dim=8, pooling=pooling)
    return VSE(config, WordTokenizer(WORDS)).eval()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, write_karpathy: Callable[..., Path]) -> Path:
    place = tmp_path_factory.mktemp("place")
    write_karpathy(place / "data")
    make_model().save_pretrained(place / "model")
    row = '0.jpg,"A ""title""",=Ann,CC0,javascript:alert(1),none\n'
    (place / "data" / "ATTRIBUTION.csv").write_text("file,title,author,licence,source,changes\n" + row)
    (place / "secret.jpg").write_bytes(b"secret")
    return place


@pytest.fixture(scope="module")
def service(place: Path) -> Service:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VSE_DEMO_CACHE", str(place / "cache"))
        service = open_service(place / "data", [place / "model"])
        service.gallery()
    return service


@pytest.fixture(scope="module")
def client(service: Service) -> TestClient:
    return TestClient(Starlette(routes=[*picture_routes(service), *api_routes(service, "red")]))


# Plain HTTP


def test_json_and_forms_get_the_same_answer(client: TestClient, service: Service, place: Path) -> None:
    by_json = client.post("/find_images", json={"sentence": "red on the left", "k": 3}).json()
    assert len(by_json) == 3
    assert by_json == client.post("/find_images", data={"sentence": "red on the left", "k": "3"}).json()
    photo = (place / "data" / "images" / "3.jpg").read_bytes()
    by_file = client.post("/find_captions", files={"image": ("3.jpg", photo)}).json()
    by_name = client.post("/find_captions", json={"image": "3.jpg"}).json()
    address = "data:image/jpeg;base64," + base64.b64encode(photo).decode()
    by_address = client.post("/find_captions", json={"image": address}).json()
    assert by_file == by_name == by_address
    both = client.post("/find_similar", files=[("image", ("3.jpg", photo))] * 2, data={"k": "2"}).json()
    assert both[0] == both[1]
    assert len(both[0]) == 2


def test_vectors_and_reasons_agree_with_the_search(client: TestClient) -> None:
    [best] = client.post("/find_images", json={"sentence": "red", "k": 1}).json()
    vectors = client.post("/embed", json={"sentence": ["red"], "image": [best["item"]]}).json()
    assert vectors["dim"] == 16
    assert np.dot(vectors["sentence"][0], vectors["image"][0]) == pytest.approx(best["score"], abs=1e-3)
    why = client.post("/explain", json={"image": best["item"], "sentence": "red"}).json()
    assert np.sum(why["cells"]) == pytest.approx(best["score"], abs=1e-3)


@pytest.mark.parametrize(
    ("route", "body", "sentence"),
    [
        ("find_images", {"sentence": "red", "k": 0}, "k must be a whole number from 1 to 500, not 0"),
        ("find_images", {"sentence": "red", "K": 5}, "unknown argument 'K'; this function takes sentence, model, k"),
        ("find_images", {"sentence": []}, "a list must have 1 to 64 items, not 0"),
        ("find_images", {"sentence": "red", "model": "clip"}, "unknown model 'clip'; choose one of given"),
        ("find_similar", {"image": "0.jpg", "sentence": 5}, "sentence must be text, not a number"),
        ("find_captions", {"image": "../secret.jpg"}, "there is no picture '../secret.jpg' in this collection"),
        ("find_captions", {"image": {"path": "/etc/passwd"}}, "Upload the picture as a file"),
        ("find_captions", {"image": {"path": "a\0b"}}, "Upload the picture as a file"),
        ("find_captions", {"image": 7}, "image must be the name of a picture, a data: address or a file, not a number"),
        ("explain", {"image": "0.jpg"}, "the argument 'sentence' is missing"),
        ("embed", {}, "Give a sentence, an image, or both"),
        ("find_images", {"sentence": "red", "model": {}}, "model must be text, not an object"),
        ("find_images", {"sentence": "red", "model": 0}, "model must be text, not a number"),
        ("find_images", {"sentence": "red", "model": False}, "model must be text, not true or false"),
        ("find_images", {"sentence": ["red", 3]}, "sentence must be text, not a number"),
        ("find_images", {"sentence": [["red"]]}, "sentence must be text, not a list"),
        ("find_similar", {"image": "0.jpg", "sentence": {}}, "sentence must be text, not an object"),
        ("find_captions", {"image": 0}, "image must be the name of a picture, a data: address or a file, not a number"),
        (
            "find_captions",
            {"image": [[]]},
            "image must be the name of a picture, a data: address or a file, not a list",
        ),
        ("find_captions", {"image": ""}, "Give a picture first"),
        ("explain", {"image": "0.jpg", "sentence": ["red"]}, "sentence must be text, not a list"),
        ("embed", {"sentence": [], "image": "0.jpg"}, "a list must have 1 to 64 items, not 0"),
        ("embed", {"sentence": "red", "image": []}, "a list must have 1 to 64 items, not 0"),
        ("embed", {"sentence": 0, "image": "0.jpg"}, "sentence must be text, not a number"),
    ],
)
def test_wrong_arguments_get_a_sentence(client: TestClient, route: str, body: dict[str, object], sentence: str) -> None:
    answer = client.post(f"/{route}", json=body)
    assert answer.status_code == 422
    assert sentence in answer.json()["error"]


def test_a_file_is_no_sentence(client: TestClient, place: Path) -> None:
    photo = (place / "data" / "images" / "3.jpg").read_bytes()
    answer = client.post("/find_images", files={"sentence": ("3.jpg", photo)})
    assert answer.json() == {"error": "sentence must be text, not a picture"}


def test_null_is_what_is_left_out(client: TestClient) -> None:
    for route, given in (("find_images", {"sentence": "red"}), ("embed", {"image": "0.jpg"})):
        answer = client.post(f"/{route}", json=given).json()
        assert client.post(f"/{route}", json={**given, "model": None}).json() == answer
    assert client.post("/embed", json={"image": "0.jpg", "sentence": None}).json() == answer


def test_an_explanation_of_a_picture_of_the_collection_is_credited(client: TestClient, place: Path) -> None:
    by_name = client.post("/explain", json={"image": "0.jpg", "sentence": "red"}).json()
    about = {"picture": "0.jpg", "title": 'A "title"', "author": "=Ann", "licence": "CC0"}
    assert about.items() <= by_name.items()
    assert by_name["url"] == "http://testserver/pictures/0.jpg?file"
    photo = (place / "data" / "images" / "0.jpg").read_bytes()
    by_file = client.post("/explain", files={"image": ("0.jpg", photo)}, data={"sentence": "red"}).json()
    assert by_file.keys() == {"score", "words", "rest", "cells"}


@pytest.mark.parametrize(
    ("method", "code", "sentence"),
    [
        ("GET", 405, "Use POST, not GET: /docs shows how"),
        ("PUT", 405, "Use POST, not PUT: /docs shows how"),
        ("POST", 400, "Missing boundary in multipart."),
    ],
)
def test_requests_of_another_kind_get_a_sentence(client: TestClient, method: str, code: int, sentence: str) -> None:
    answer = client.request(method, "/find_images", headers={"content-type": "multipart/form-data"})
    assert answer.status_code == code
    assert answer.json() == {"error": sentence}


def test_the_page_for_programs_has_answers_of_this_server(client: TestClient) -> None:
    page = client.get("/docs").text
    assert re.findall(r'<h2 id="(\w+)"', page) == ["find_images", "find_similar", "find_captions", "explain", "embed"]
    assert "http://testserver/find_images" in page
    assert "<script" not in page
    assert page.count("&quot;score&quot;") >= 3
    other = client.get("/docs", headers={"host": "example.org"}).text  # the answers are computed once
    for text, address in ((page, "http://testserver/"), (other, "http://example.org/")):
        assert set(re.findall(r'"url": "(.*?)pictures/', html.unescape(text))) == {address}


# Pictures and their credit


def test_pictures_are_served_small_large_and_as_they_are(client: TestClient, place: Path) -> None:
    original = client.get("/" + picture_url("0.jpg"))
    assert original.content == (place / "data" / "images" / "0.jpg").read_bytes()
    assert original.headers["content-disposition"] == "attachment"
    small = client.get("/" + picture_url("0.jpg", 220))
    assert small.headers["content-type"] == "image/jpeg"
    again = client.get("/" + picture_url("0.jpg", 220), headers={"If-None-Match": small.headers["etag"]})
    assert again.status_code == 304
    assert client.get("/pictures/0.jpg?size=9999").status_code == 400
    for name in ("../secret.jpg", "..%2fsecret.jpg", "%2e%2e/secret.jpg", "/etc/passwd", "nothing.jpg", "%ff", ""):
        answer = client.get(f"/pictures/{name}?file")
        assert answer.status_code == 404, name
        assert b"secret" not in answer.content.replace(b"secret.jpg", b"")


def test_credit_is_shown_and_an_address_that_is_none_is_no_link(service: Service) -> None:
    photo = service.photo("0.jpg")
    assert photo.credit
    assert photo.path.endswith("data/images/0.jpg")  # a picture of one's own is told by its path
    large = results.large_view(photo, "text")
    for text in ("A &quot;title&quot;", "=Ann", "CC0", "javascript:alert(1)"):
        assert text in large
    assert 'href="javascript' not in large
    assert len(re.findall("<li>", large)) == 5
    assert service.photo("1.jpg").credit is None


@pytest.mark.parametrize("pooling", ["adpool", "gpo"])
def test_a_picture_is_credited_where_nothing_is_explained(
    service: Service, monkeypatch: pytest.MonkeyPatch, pooling: str
) -> None:
    """No caption is close, or the model gives no reasons: who chose a picture still sees whose it is."""
    gallery = Gallery(make_model(pooling=pooling))
    gallery.sync(Path(str(service.file("0.jpg"))).parents[1], progress=False)
    other = Service({"one": lambda _: gallery}, service.files, service.captions, lambda *_: None, service.credits)
    monkeypatch.setattr(other, "is_far", lambda *_: pooling == "adpool")
    actions = Actions(other)
    answers = list(actions.find_captions(None, "0.jpg", 5, "", "none", Turns(), 1, lambda *_, **__: None))
    why = answers[-1][1]
    assert "=Ann" in why
    assert 'data-enlarge="0.jpg"' in why
    assert "Why" not in why


def test_what_pictures_were_searched_by_can_be_opened() -> None:
    assert 'data-enlarge="0.jpg"' in results.image_cards(Asked(like="0.jpg"), [], str)


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    assert read_credits(tmp_path) == {}
    (tmp_path / "ATTRIBUTION.csv").write_text("name\n0.jpg\n")
    with pytest.raises(FileError, match=r"ATTRIBUTION.csv is no table of file, title, author"):
        read_credits(tmp_path)


# Searching by more than a sentence


def test_a_picture_and_a_sentence_are_added_and_minus_words_taken_away(service: Service) -> None:
    image = service.file("2.jpg")
    text, minus = (service.encode_text(word).vector for word in ("red", "blue"))
    picture = service.encode_image(image).vector
    for query, total in (
        (service.ask("red", image), picture + text),
        (service.ask("red -blue"), text - 0.5 * minus),
        (service.ask("-blue", image), picture - 0.5 * minus),
    ):
        assert isinstance(query, MixedQuery)
        assert torch.allclose(query.vector, total / total.norm(), atol=1e-6)
        assert len(service.find_images(query, 4)) == 4
    assert "2.jpg" not in [each.item for each in service.find_images(service.ask("", image), 30)]  # not itself
    with pytest.raises(ValueError, match="Say what to look for, not only what to leave out"):
        service.ask("-blue")


@pytest.mark.parametrize(
    ("sentence", "wanted", "minus"),
    [
        ("a beach", "a beach", []),
        ("a beach -people", "a beach", ["people"]),
        ('-"red umbrella" beach', "beach", ["red umbrella"]),
        ("rock-solid - a dash – and -5 degrees", "rock-solid - a dash – and -5 degrees", []),
    ],
)
def test_minus_words(sentence: str, wanted: str, minus: list[str]) -> None:
    assert split_minus(sentence) == (wanted, minus)


def test_the_parts_of_a_picture_add_up_to_its_score_with_any_query() -> None:
    members = [make_model(0), make_model(1)]
    for model in (members[0], Ensemble(members)):
        service = Service({"one": lambda _, model=model: Gallery(model)}, {}, {}, lambda _, sample: compute_map(sample))
        first, second = (service.encode_image(paint(seed)) for seed in (0, 1))
        assert service.explain(first, second).score == pytest.approx(float(first.vector @ second.vector.T), abs=1e-5)


# What it does not know


def test_unknown_words_are_named_and_typos_repaired() -> None:
    lexicon = Lexicon.of(make_model(), ["a red yellow", "red"], {"lefty", "gnu"})
    assert lexicon
    assert lexicon.unknown("Redd on the LEFT, 5 x 7!") == ["redd", "x"]
    assert lexicon.correct("a yelow wall, on the rihgt!") == "a yellow wall, on the right!"
    assert lexicon.correct("on the left") == ""
    assert lexicon.correct("gnu") == ""  # a word that exists, although this model does not know it
    assert lexicon.unknown("gnu") == ["gnu"]
    assert lexicon.unknown("whites") == []  # derived from a known one


def test_a_typo_gets_a_button() -> None:
    cards = results.image_cards(Asked("yelow"), [], str, notes=[Note("Unknown.", "yellow")])
    assert 'Did you mean <button type="button" data-ask="yellow">yellow</button>?' in cards


def test_nothing_is_close_is_said_by_the_calibration(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = service.gallery()
    query = service.encode_text("red")
    found = service.find_images(query)
    assert service.is_far(query, found) is None  # it was not measured
    random = torch.nn.functional.normalize(torch.randn(100, 16, generator=torch.manual_seed(0)))
    table = calibrate(random, random, torch.arange(100), gallery.model.fingerprint())
    monkeypatch.setattr(gallery.model, "calibrations", {table.fingerprint: table})
    fingerprint, hashed = gallery.model.fingerprint, []
    monkeypatch.setattr(gallery.model, "fingerprint", lambda: hashed.append(1) or fingerprint())
    measured = Service({"given": lambda _: gallery}, {}, {}, lambda _, sample: compute_map(sample))
    line = table.table("t2i", len(gallery)).nothing_below
    for score, far in ((line - 0.01, True), (line + 0.01, False)):
        assert measured.is_far(query, [SearchResult("0.jpg", "0.jpg", score, None)]) is far
    image = service.encode_image(service.file("2.jpg"))
    line = table.table("i2t", len(gallery)).nothing_below
    for score, far in ((line - 0.01, True), (line + 0.01, False)):
        assert measured.is_far(image, [SearchResult("red", "0.jpg", score, None)], "i2t") is far
    assert measured.is_far(image, found) is None  # images by an image were not measured
    assert len(hashed) == 1  # all weights are hashed for that: not for every search
    cards = results.image_cards(Asked("red"), found, str, far=True)
    assert cards.index("Nothing here is close") < cards.index("<details") < cards.index('class="cards')
    captions = results.caption_cards(service.find_captions(image), Asked(), far=True)
    assert "below such a score the right caption was seldom there" in " ".join(captions.split())


# A folder


def test_a_folder_is_encoded_once_for_all_models(place: Path, tmp_path: Path) -> None:
    first, second = make_model(0), make_model(1)
    second.image_encoder.backbone.load_state_dict(first.image_encoder.backbone.state_dict())
    models = {"first": first, "second": second, "both": Ensemble([first, second])}
    passes: Counter[str] = Counter()
    for name, model in (("first", first), ("second", second)):
        model.image_encoder.backbone.register_forward_hook(lambda *_, name=name: passes.update([name]))
    told: list[tuple[int, int]] = []
    folder = FolderGalleries(lambda: models, open_dataset(place / "data"), tmp_path)
    both = folder.get("both", lambda done, total: told.append((done, total)))
    assert set(passes) == {"first"}  # one backbone saw all images, for all three
    assert told[-1] == (16, 16)
    count = passes.total()
    alone = folder.get("second")
    assert passes.total() == count
    files = [place / "data" / "images" / name for name in alone.names]
    assert torch.allclose(alone.image_vectors, second.encode_images(files), atol=2e-3)  # kept in half precision
    assert torch.allclose(both.image_vectors[:, 16:] * 2**0.5, alone.image_vectors, atol=2e-3)


def test_the_map_is_kept_until_the_folder_changes(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    monkeypatch.setattr(
        "vse_demo.app.folder.compute_map", lambda sample: computed.append(1) or np.zeros((len(sample.entries), 2))
    )
    model = make_model()
    for _ in range(2):
        folder = FolderGalleries(lambda: {"": model}, open_dataset(place / "data"), tmp_path)
        cached_map(Sample.of(folder.get("")), model, tmp_path)
    assert len(computed) == 1
    [file] = (tmp_path / "maps").iterdir()
    file.write_bytes(b"broken")
    cached_map(Sample.of(folder.get("")), model, tmp_path)
    assert len(computed) == 2


def test_a_map_of_a_hundred_thousand_says_how_many_it_shows() -> None:
    from vse_demo.app.html.map import render_map
    from vse_demo.app.map import MAX_IMAGES

    count, model = 100_000, make_model()
    vectors = torch.nn.functional.normalize(torch.randn(count, 16))
    names = [f"{number}.jpg" for number in range(count)]
    gallery = Gallery(model, names, names, [], np.empty(0, np.int64), vectors, torch.empty(0, 16))
    sample = Sample.of(gallery)
    drawn = render_map(sample.entries, np.random.default_rng(0).random((MAX_IMAGES, 2)), str, len(gallery))
    assert f"{MAX_IMAGES} of 100,000 pictures" in " ".join(drawn.split())
    assert drawn.count('class="picture" cx') == MAX_IMAGES
    assert len(drawn) < 1_000_000


def test_broken_files_are_listed() -> None:
    cards = results.image_cards(Asked("red"), [], str, left_out=["<b>.jpg is empty"])
    assert "&lt;b&gt;.jpg is empty" in cards
    assert json.dumps(cards)


def test_of_very_many_broken_files_some_are_listed() -> None:
    cards = results.image_cards(Asked("red"), [], str, left_out=[f"{number}.jpg is empty" for number in range(4321)])
    assert "4321 remarks on files" in cards
    assert cards.count(".jpg is empty</li>") == 100
    assert "<li>and 4221 more</li>" in cards


@pytest.mark.parametrize(
    ("sentence", "note"),
    [
        ("red " * 64, ""),
        ("red " * 65, "Only the first 64 words of this sentence are read"),
        ("red " * 64 + "-blue", ""),
        ("rock-solid " * 40, "Only the first 32 words of this sentence are read"),  # each is read as two
    ],
)
def test_a_sentence_that_is_not_read_to_its_end_is_remarked(service: Service, sentence: str, note: str) -> None:
    notes = [each.text for each in Actions(service).notes(sentence, "") if "do" not in each.text]
    assert len(notes) == bool(note)
    assert all(each.startswith(note) for each in notes)


@pytest.mark.parametrize(
    ("sentence", "like", "said"),
    [
        ("", "nothing&.jpg", "there is no picture &#x27;nothing&amp;.jpg&#x27; in this collection"),
        ("", "${nothing}", "there is no picture &#x27;&#36;&#123;nothing&#125;&#x27; in this collection"),
        ("-red", "", "Say what to look for, not only what to leave out"),
        ("x" * 2001, "", "That is 2,001 characters"),
    ],
)
def test_what_is_wrong_with_an_address_stands_where_its_results_would_be(
    service: Service, sentence: str, like: str, said: str
) -> None:
    from vse_demo.app.actions import with_hints

    find = with_hints(Actions(service).find_addressed)
    with pytest.warns(UserWarning, match=r"\w"):  # the hint on the page, where there is none
        [answer] = find(sentence, None, like, 5, "", "none", Turns(), 1, lambda *_, **__: None)
    assert said in answer[0]


def test_an_uploaded_file_that_is_no_picture_changes_nothing(service: Service) -> None:
    import gradio as gr

    take = Actions(service).take
    with pytest.warns(UserWarning, match="bad.jpg is empty"), pytest.raises(gr.Error):
        take(FileError("bad.jpg is empty"), False)
    with pytest.raises(gr.Error):
        take(None, True)  # the field that was emptied because of that
    assert take(None, False) == gr.skip()
    picture = Image.new("RGB", (9, 9))
    picture.info["shown"] = False
    assert take(picture, False) is picture


def test_a_search_tells_of_broken_files_and_of_those_that_no_caption_file_names(
    place: Path, tmp_path: Path, save_picture: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VSE_DEMO_CACHE", str(tmp_path / "cache"))
    for number in range(3):
        save_picture(tmp_path / "mine" / f"{number}.png", number)
    (tmp_path / "mine" / "broken.png").write_bytes(b"")
    (tmp_path / "mine" / "captions.json").write_text(json.dumps({"0.png": ["red on the left"]}))
    actions = Actions(open_service(tmp_path / "mine", [place / "model"]))
    with pytest.warns(UserWarning, match=r"left out: broken.png is empty"):
        [cards, *_], *_ = actions.find("red", None, "", 5, "", "none", Turns(), 1, lambda *_, **__: None)
    assert "broken.png is empty" in cards
    assert "2 pictures are not named in the caption file; they are found all the same" in cards
    assert cards.count('class="card ') == 3


def test_the_time_that_is_left_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 20.0)
    assert time_left(None, 0, 100) == ""
    assert time_left((10.0, 0), 50, 100) == ", about 10 s left"
    assert time_left((0.0, 0), 10, 1000) == ", about 33 min left"


def test_a_picture_that_cannot_be_decoded_is_named_as_the_caller_does() -> None:
    from vse_demo.app.api import read_bytes

    with pytest.raises(FileError, match=r"^mine.png is not an image"):
        read_bytes(b"nothing", "mine.png")
    stream = io.BytesIO()
    paint(1).save(stream, "TIFF")
    assert read_bytes(stream.getvalue(), "mine.tif").size == (48, 40)


def test_the_guard_decodes_uploads_also_of_fields_that_gradio_makes_anew(tmp_path: Path) -> None:
    from types import SimpleNamespace

    import gradio as gr

    from vse_demo.app.guard import bounded

    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no picture")
    first = bounded(gr.Image(type="pil"))
    for field in (first, type(first)(type="pil")):  # an update of a field makes another one of its class
        assert isinstance(field.preprocess(SimpleNamespace(path=str(bad))), FileError)


def test_a_gradio_without_what_is_replaced_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    import gradio as gr
    from gradio import processing_utils
    from gradio.mcp import GradioMCPServer

    from vse_demo.app import guard
    from vse_demo.app.api import add_endpoints

    for owner, name, start in (
        (gr.Image, "preprocess", lambda: guard.bounded(gr.Image())),
        (gr.Blocks, "validate_inputs", lambda: add_endpoints(service)),
        (processing_utils, guard.FETCH, guard.block_url_fetch),
        (GradioMCPServer, "postprocess_output_data", guard.answer_mcp_in_json),
    ):
        with monkeypatch.context() as patch:
            patch.delattr(owner, name)
            with pytest.raises(RuntimeError, match=rf"^Gradio 6[\d.]+ has no [\w.]+\.{name}, so "):
                start()
