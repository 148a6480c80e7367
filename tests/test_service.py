"""What the app computes, with a small random model over a few painted images."""

import base64
import copy
import dataclasses
import io
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vse_demo.app.map
from vse_demo import VSE, Ensemble, Gallery, ModelConfig, open_dataset
from vse_demo.app.actions import IMAGE_LABEL, Actions
from vse_demo.app.attribution import Attribution, mean_grid
from vse_demo.app.collection import open_service
from vse_demo.app.credits import Credit
from vse_demo.app.folder import cached_gallery
from vse_demo.app.html import drawings, reasons, results
from vse_demo.app.html import map as map_html
from vse_demo.app.html.results import Asked, Note
from vse_demo.app.map import Sample, compute_map
from vse_demo.app.queries import check_sentence
from vse_demo.app.service import Photo, SearchResult, Service
from vse_demo.app.turns import Turns
from vse_demo.data import read_image
from vse_demo.data.images import ImageLike
from vse_demo.encoders import SubwordTokenizer, TransformerText, WordTokenizer
from vse_demo.shipped import RUNS
from vse_demo.utils.files import FileError

pytestmark = pytest.mark.slow

COLOURS = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple", "left", "right"]


def make_model(seed: int = 0, dim: int = 16) -> VSE:
    torch.manual_seed(seed)
    config = ModelConfig(dim=dim, backbone="test_efficientnet", image_size=64, word_dim=8)
    return VSE(config, WordTokenizer(COLOURS)).eval()


def make_bert(bert_folder: Path, image_size: int) -> VSE:
    torch.manual_seed(1)
    settings = {"dim": 16, "backbone": "test_efficientnet", "image_size": image_size, "text": "bert"}
    config = ModelConfig(**settings, text_config=TransformerText.read_config(str(bert_folder)))
    return VSE(config, SubwordTokenizer.from_pretrained(str(bert_folder))).eval()


def service_of(model: VSE | Ensemble) -> Service:
    return Service({"one": lambda _: Gallery(model)}, {}, {}, lambda _, sample: compute_map(sample))


def explain(service: Service, image: ImageLike, sentence: str) -> Attribution:
    return service.explain(service.encode_image(image), service.encode_text(sentence))


@pytest.fixture
def service(karpathy_folder: Path, tmp_path: Path) -> Service:
    make_model().save_pretrained(tmp_path / "model")
    return open_service(karpathy_folder, [tmp_path / "model"])


def test_a_caption_of_the_collection_is_ticked_and_crossed(service: Service) -> None:
    gallery = service.gallery()
    found = service.find_images(service.encode_text(gallery.captions[7]), k=len(gallery))
    own = gallery.names[gallery.image_ids[7]]
    assert [each.item for each in found if each.right] == [own]
    assert all(each.right is not None for each in found)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


def test_a_caption_of_a_copy_is_one_of_the_picture(karpathy_folder: Path, tmp_path: Path) -> None:
    copies = karpathy_folder / "images"
    (copies / "9.jpg").write_bytes((copies / "4.jpg").read_bytes())
    make_model().save_pretrained(tmp_path / "model")
    service = open_service(karpathy_folder, [tmp_path / "model"])
    found = service.find_images(service.encode_text(service.captions["9.jpg"][0]), k=99)
    assert {each.item: each.right for each in found} == {f"{n}.jpg": n == 4 for n in range(16) if n != 9}


def test_a_sentence_that_nobody_wrote_is_not_marked(service: Service) -> None:
    assert {each.right for each in service.find_images(service.encode_text("something quite new"))} == {None}


@pytest.mark.parametrize("shape", ["png", "smaller"])
def test_a_picture_of_the_collection_is_known_again_in_another_format(
    service: Service, tmp_path: Path, shape: str
) -> None:
    gallery = service.gallery()
    image = read_image(service.file(gallery.names[3]))
    if shape == "smaller":
        image = image.resize((40, 30))
    else:
        image.save(tmp_path / "copy.png")
        image = read_image(tmp_path / "copy.png")
    found = service.find_captions(service.encode_image(image), k=len(gallery.captions))
    right = {each.item for each in found if each.right}
    assert right == {
        text for text, image_ids in zip(gallery.captions, gallery.image_ids, strict=True) if image_ids == 3
    }


def test_a_strange_picture_is_not_marked(service: Service) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8))
    query = service.encode_image(noise)
    assert service.recognise(query) is None
    assert {each.right for each in service.find_captions(query)} == {None}


def test_reasons_add_up(service: Service) -> None:
    gallery = service.gallery()
    why = explain(service, service.file(gallery.names[0]), "red on the left")
    assert why.words == ["red", "on", "the", "left"]
    assert why.heat_map.sum() == pytest.approx(why.score, abs=1e-5)
    assert why.parts.sum() + why.rest == pytest.approx(why.score, abs=1e-5)
    assert why.rest == 0  # nothing is put around a sentence of words


@pytest.mark.parametrize("sentence", ["red", "Red, on the left!", "– ? –", "“red” rock-solid 😀 a\u0301b"])
def test_the_reasons_of_an_ensemble_are_the_means_of_its_members(bert_folder: Path, sentence: str) -> None:
    """Members that read and see differently: words and pieces of words, 2 × 2 and 3 × 3 cells."""
    members = [make_model(0), make_bert(bert_folder, image_size=96)]
    service = service_of(Ensemble(members))
    image = Image.new("RGB", (50, 40), "red")
    why = explain(service, image, sentence)
    scores = [float(member.similarity([image], [sentence])) for member in members]
    assert why.score == pytest.approx(float(np.mean(scores)), abs=1e-6)
    assert why.heat_map.shape == (6, 6)
    assert why.heat_map.sum() == pytest.approx(why.score, abs=1e-5)
    assert len(why.parts) == len(why.words)
    assert why.parts.sum() + why.rest == pytest.approx(why.score, abs=1e-5)
    alone = [explain(service_of(member), image, sentence) for member in members]
    assert np.allclose(why.parts, np.mean([each.parts for each in alone], axis=0), atol=1e-6)
    assert why.rest == pytest.approx(alone[1].rest / 2)
    assert len(why.explanations) == 2


def test_grids_of_different_sizes_have_a_mean_with_the_same_sum() -> None:
    coarse, fine = np.array([[4.0]]), np.array([[0.0, 1.0], [2.0, 5.0]])
    assert np.array_equal(mean_grid([coarse, fine]), [[0.5, 1.0], [1.5, 3.0]])


def test_a_score_can_be_compared_with_the_usual_one(service: Service) -> None:
    gallery = service.gallery()
    own = [float(c @ gallery.image_vectors[o]) for c, o in zip(gallery.caption_vectors, gallery.image_ids, strict=True)]
    usual = service.usual_score()
    assert usual is not None
    assert sum(score < usual - 1e-6 for score in own) <= len(own) / 2 <= sum(score <= usual + 1e-6 for score in own)


@pytest.mark.parametrize(
    ("sentence", "message"), [("", "Type a sentence first"), (" \n\t", "Type a sentence"), ("x" * 2001, "2,001 char")]
)
def test_sentences_that_cannot_be_searched_for_get_a_hint(service: Service, sentence: str, message: str) -> None:
    for search in (lambda: service.encode_text(sentence), lambda: check_sentence(sentence)):
        with pytest.raises(ValueError, match=message):
            search()


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/passwd", "nothing.jpg", ""])
def test_no_file_outside_the_collection_is_given(service: Service, name: str) -> None:
    with pytest.raises(FileError, match="there is no picture"):
        service.file(name)


def test_an_unknown_model_is_refused(service: Service) -> None:
    with pytest.raises(ValueError, match="unknown model 'clip'; choose one of given"):
        service.encode_text("red", "clip")


def test_regions_cannot_be_shown(precomp_folder: Path) -> None:
    with pytest.raises(FileError, match="holds precomputed regions, which cannot be shown"):
        open_service(precomp_folder)


def test_a_request_is_encoded_once(karpathy_folder: Path, tmp_path: Path) -> None:
    """The page's search, ticks, mark on the map and explanation take one pass of each encoder, also in an ensemble."""
    models = [make_model(0), make_model(1)]
    models[1].image_encoder.backbone.load_state_dict(models[0].image_encoder.backbone.state_dict())
    for seed, model in enumerate(models):
        model.save_pretrained(tmp_path / f"model {seed}")
    service = open_service(karpathy_folder, [tmp_path / "model 0", tmp_path / "model 1"])
    actions, ensemble = Actions(service), service.gallery().model
    image = read_image(service.file(service.gallery().names[0]))
    service.map()
    assert isinstance(ensemble, Ensemble)
    calls: Counter[str] = Counter()
    for number, member in enumerate(ensemble.members):
        for name, module in (("backbone", member.image_encoder.backbone), ("text", member.text_encoder)):
            module.register_forward_hook(lambda *_, key=f"{name} {number}": calls.update([key]))
    found = list(actions.find("red on the left", None, "", 5, "given", "given", Turns(), 1, lambda *_, **__: None))
    assert "Nearest to “red on the left”" in found[0][0]  # the images first
    assert "Why" in found[1][1]
    assert found[1][2]["label"] == "red on the left"
    assert calls == {"backbone 0": 1, "text 0": 1, "text 1": 1}
    calls.clear()
    found = list(actions.find_captions(image, "", 5, "given", "given", Turns(), 1, lambda *_, **__: None))
    assert "its own" in found[0][0]  # it was recognised
    assert found[1][2]["label"] == IMAGE_LABEL
    assert calls == {"backbone 0": 1, "text 0": 1, "text 1": 1}


@pytest.mark.parametrize("pooling", ["adpool", "gpo"])
def test_queries_have_the_vectors_of_the_model(pooling: str) -> None:
    torch.manual_seed(0)
    config = ModelConfig(dim=16, backbone="test_efficientnet", image_size=64, word_dim=8, pooling=pooling)
    model, image = VSE(config, WordTokenizer(COLOURS)).eval(), Image.new("RGB", (50, 40), "red")
    for chosen in (model, Ensemble([model, make_model(1)])):
        service = service_of(chosen)
        assert torch.allclose(service.encode_text("red left").vector, chosen.encode_texts(["red left"]), atol=1e-6)
        assert torch.allclose(service.encode_image(image).vector, chosen.encode_images([image]), atol=1e-6)


# Whose answer is shown


def test_a_search_that_a_later_one_has_overtaken_is_not_shown() -> None:
    turns = Turns()
    turns.begin("images", 1)
    turns.begin("images", 2)
    assert turns.show("images", 2)
    assert not turns.show("images", 1)
    turns.begin("images", 0.5)  # it was asked first and comes last
    assert not turns.show("images", 0.5)
    assert turns.show("captions", 0.5)


def test_an_explanation_is_shown_only_below_the_cards_it_was_asked_on() -> None:
    turns = Turns()
    turns.begin("images", 1)
    assert turns.show("images", 1)
    turns.begin("images", 2)  # a search, during which a card of the first one is chosen
    turns.begin("why image", 3)
    assert turns.is_current("why image", 3, "images", 1)
    assert turns.show("images", 2)
    assert not turns.is_current("why image", 3, "images", 1)
    turns.begin("why image", 4)
    turns.begin("why image", 5)
    assert not turns.is_current("why image", 4, "images", 2)
    assert turns.is_current("why image", 5, "images", 2)
    assert copy.deepcopy(turns).is_current("why image", 0, "images", 0)  # of another visitor


# The cache


def test_a_folder_is_encoded_once(karpathy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, dataset = make_model(), open_dataset(karpathy_folder)
    first = cached_gallery(model, dataset, root=tmp_path)
    encoded: list[int] = []
    original = VSE.encode_images

    def counted(self: VSE, images: Sequence[object], *rest: object, **more: object) -> torch.Tensor:
        encoded.append(len(images))
        return original(self, images)

    monkeypatch.setattr(VSE, "encode_images", counted)
    again = cached_gallery(model, dataset, root=tmp_path)
    assert sum(encoded) == 0
    assert torch.equal(first.image_vectors, again.image_vectors)
    assert len(cached_gallery(make_model(1), dataset, root=tmp_path)) == len(first)  # another model, another cache
    assert sum(encoded) == len(first)


def test_pictures_that_come_and_go(
    tmp_path: Path, save_picture: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = tmp_path / "mine", make_model()
    for number in range(4):
        save_picture(folder / f"{number}.png", number)
    assert len(cached_gallery(model, open_dataset(folder), root=tmp_path / "cache")) == 4
    (folder / "1.png").unlink()
    save_picture(folder / "9.png", 9)
    gallery = cached_gallery(model, open_dataset(folder), root=tmp_path / "cache")
    assert sorted(gallery.names) == ["0.png", "2.png", "3.png", "9.png"]
    fresh = Gallery.build(model, open_dataset(folder).split("all"), progress=False)
    for name in gallery.names:
        vectors = [each.image_vectors[each.names.index(name)] for each in (gallery, fresh)]
        assert torch.allclose(*vectors, atol=1e-3)  # stored in half precision


def test_captions_go_with_their_pictures(karpathy_folder: Path) -> None:
    gallery = Gallery.build(make_model(), open_dataset(karpathy_folder).split("test"), progress=False)
    before = {
        text: gallery.names[image_ids] for text, image_ids in zip(gallery.captions, gallery.image_ids, strict=True)
    }
    kept = gallery.names[1:3]
    assert gallery.keep(kept) == 2
    assert gallery.names == kept
    after = {
        text: gallery.names[image_ids] for text, image_ids in zip(gallery.captions, gallery.image_ids, strict=True)
    }
    assert after == {text: name for text, name in before.items() if name in kept}
    assert gallery.keep(kept) == 0


def test_a_broken_cache_is_made_anew(karpathy_folder: Path, tmp_path: Path) -> None:
    model, dataset = make_model(), open_dataset(karpathy_folder)
    first = cached_gallery(model, dataset, root=tmp_path).image_vectors
    [file] = tmp_path.rglob("shard-0001.images.f16")
    file.write_bytes(b"half")
    assert torch.allclose(cached_gallery(model, dataset, root=tmp_path).image_vectors, first, atol=1e-3)


def test_everyone_who_waits_sees_how_far_the_reading_of_a_folder_is(
    tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    for number in range(40):  # two batches
        save_picture(tmp_path / "mine" / f"{number}.png", number)
    go = threading.Event()

    def source(report: Callable[[int, int], object]) -> Gallery:
        def slow(done: int, total: int) -> None:
            report(done, total)
            assert done != 32 or go.wait(600)

        return cached_gallery(make_model(), open_dataset(tmp_path / "mine"), slow, tmp_path / "cache")

    service = Service({"slow": source}, {}, {}, lambda _, sample: compute_map(sample))
    first, second = service.progress(every=0.01), service.progress(every=0.01)
    for waiting in (first, second):
        assert (32, 40) in waiting
    go.set()
    assert len(service.gallery()) == 40
    assert list(service.progress()) == []


def test_a_folder_that_is_read_again_tells_how_far_it_is(
    tmp_path: Path, save_picture: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is encoded, but every file is looked at, and of many that takes minutes."""
    monkeypatch.setattr("vse_demo.retrieval.sync.SCAN", 4)
    for number in range(6):
        save_picture(tmp_path / "mine" / f"{number}.png", number)
    for told in ([], []):
        dataset = open_dataset(tmp_path / "mine")
        cached_gallery(make_model(), dataset, lambda *step, told=told: told.append(step), tmp_path / "cache")
        assert told[:3] == [(0, 6), (4, 6), (6, 6)]
    assert told[3:] == []


def test_a_gallery_that_failed_says_why_and_is_tried_again() -> None:
    galleries = iter([FileError("the disk is full"), Gallery(make_model())])

    def source(_: object) -> Gallery:
        gallery = next(galleries)
        if isinstance(gallery, Exception):
            raise gallery
        return gallery

    service = Service({"one": source}, {}, {}, lambda _, sample: compute_map(sample))
    with pytest.raises(FileError, match="the disk is full"):
        list(service.progress())
    assert len(service.gallery()) == 0


def test_a_model_that_is_none_is_refused_at_once(karpathy_folder: Path) -> None:
    with pytest.raises(FileError, match="is not a folder with a model"):
        open_service(karpathy_folder, [karpathy_folder / "nothing"])


# The map


def test_the_map_has_a_place_for_everything_and_is_the_same_every_time(service: Service) -> None:
    gallery = service.gallery()
    places = service.map()
    assert places.shape == (len(gallery) + len(gallery.captions), 2)
    assert np.array_equal(places, compute_map(Sample.of(gallery)))


def test_a_query_lands_on_itself(service: Service) -> None:
    gallery, places = service.gallery(), service.map()
    size = np.ptp(places, axis=0).max()
    number = len(gallery) + 3
    assert (
        np.abs(service.place(service.encode_text(gallery.captions[3]), neighbours=1) - places[number]).max()
        < 0.3 * size
    )
    image = read_image(service.file(gallery.names[2]))
    assert np.abs(service.place(service.encode_image(image), neighbours=1) - places[2]).max() < 1e-4 * size + 1e-3


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "${alert(1)}",
    "{{constructor}}",
    "`x`",
    "\\u003c",
]


def parts_of_the_page(text: str) -> list[str]:
    """All HTML that shows captions, names and queries, showing this text."""

    def read(_: str) -> Image.Image:
        return Image.new("RGB", (9, 9))

    model = make_model()
    vectors = torch.zeros(1, model.dim)
    gallery = Gallery(model, [text], ["0"], [text], np.array([0]), vectors, vectors)
    photo = Photo(text, f"{text}/{text}", [text, text], Credit(text, text, text, text, text))
    found = [
        SearchResult(text, "0.jpg", 0.5, True),
        SearchResult(text, "1.jpg", 0.4, False),
        SearchResult(text, "2.jpg", -0.3, None),
    ]
    return [
        map_html.render_map([*gallery.entries()], np.array([[0.0, 0.0], [1.0, 1.0]]), lambda name: name, 1),
        results.image_cards(Asked(text, like=text), found, lambda name: name, [{"item": text}], [Note(text, text)], 9),
        results.caption_cards(found, Asked()),
        results.sample_cards([text], lambda name: name),
        reasons.attribution(read(text), explain(service_of(model), read(text), text), 0.3, photo),
        reasons.only_about(photo),
        results.large_view(photo, text),
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_captions_names_and_queries_are_nothing_but_text_on_the_page(text: str) -> None:
    harmless = parts_of_the_page("harmless")
    for piece, usual in zip(parts_of_the_page(text), harmless, strict=True):
        assert set(re.findall(r"<(\w+)", piece)) == set(re.findall(r"<(\w+)", usual))
        assert set(re.findall(r" ([\w-]+)=\"", piece)) == set(re.findall(r" ([\w-]+)=\"", usual))
        assert re.findall(r"\$\{[^}]*\}", piece) == re.findall(r"\$\{[^}]*\}", usual)  # those of the mark
        assert "{{" not in piece
        assert "`" not in piece
    assert not set("<>\"'`${}\\") & set(map_html.mark(np.zeros(2), np.eye(2), text)["label"])


def test_the_mark_is_inside_the_drawing() -> None:
    places = np.array([[0.0, 5.0], [10.0, 25.0]])
    for place in places:
        mark = map_html.mark(place, places, "here")
        assert 0 < mark["x"] < map_html.SIZE[0]
        assert 0 < mark["y"] < map_html.SIZE[1]
    assert map_html.mark(places[0], places, "long " * 30)["label"] == "long long long long long long l…"
    assert map_html.mark(places[0], places, "here")["anchor"] == "start"  # of a label that goes to the right
    assert map_html.mark(places[1], places, "here")["anchor"] == "end"


def test_a_map_of_very_many_shows_some_pictures_with_all_their_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vse_demo.app.map, "MAX_IMAGES", 3)
    image_ids, vectors = np.repeat(np.arange(8), 5), torch.zeros(40, 16)
    gallery = Gallery(make_model(), "abcdefgh", "abcdefgh", ["x"] * 40, image_ids, vectors[:8], vectors)
    sample = Sample.of(gallery)
    assert len({entry.digest for entry in sample.entries}) == len(sample.entries) == len(sample.images) == 3
    assert len(sample.captions) == sum(len(entry.captions) for entry in sample.entries) == 15


def test_a_sentence_has_a_place_among_pictures_without_captions(
    tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    for number in range(6):
        save_picture(tmp_path / "mine" / f"{number}.png", number)
    make_model().save_pretrained(tmp_path / "model")
    service = open_service(tmp_path / "mine", [tmp_path / "model"])
    assert np.isfinite(service.place(service.encode_text("red"))).all()
    assert service.find_captions(service.encode_image(Image.new("RGB", (9, 9)))) == []
    assert service.usual_score() is None
    assert service.examples() == []
    assert service.describe("3.png") == "3.png"


# Parts of the page


def test_results_are_buttons_with_marks_scores_and_alternative_texts() -> None:
    found = [SearchResult("a.jpg", "a.jpg", 0.512, True), SearchResult("b.jpg", "b.jpg", -0.07, False)]
    cards = results.image_cards(Asked("title"), found, lambda name: f"of {name}")
    assert re.findall(r'data-item="[^"]*"\s+aria-pressed="(\w+)"', cards) == ["true", "false"]
    assert re.findall(r'alt="([^"]*)"', cards) == ["of a.jpg", "of b.jpg"]
    assert re.findall(r'class="score">([^<]*)', cards) == ["0.51", "−0.07"]
    assert cards.index("✓") < cards.index("✗")
    assert "✓" not in results.caption_cards([SearchResult("A dog.", "a.jpg", 0.4, None)], Asked())


def test_words_are_the_darker_the_more_they_count(service: Service) -> None:
    image = Image.new("RGB", (50, 40), "red")
    why = dataclasses.replace(explain(service, image, "one two three"), parts=np.array([0.3, -0.1, 0.1]), rest=0.0)
    piece = reasons.attribution(image, why, None)
    assert re.findall(r'class="(word[^"]*)" style="--share: (\d+)%"', piece) == [
        ("word", "60"), ("word minus", "20"), ("word", "20"),
    ]  # fmt: skip
    assert re.findall(r'class="unseen"> \(([^)]*)\)', piece) == ["0.30", "−0.10", "0.10"]  # not by colour alone


def test_a_heat_map_has_the_shape_of_its_picture_and_the_colours_of_its_parts(service: Service) -> None:
    image = Image.new("RGB", (200, 100), "white")
    why = dataclasses.replace(explain(service, image, "red"), heat_map=np.array([[0.4, 0.0], [0.0, -0.2]]))
    piece = reasons.attribution(image, why, None)
    assert "aspect-ratio: 2.000" in piece
    coded = re.search(r"data:image/png;base64,([^\"]+)", piece)
    assert coded
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(coded[1]))))
    assert pixels[0, 0, 1] > pixels[0, 0, 0]  # green
    assert pixels[-1, -1, 0] > pixels[-1, -1, 1]  # vermilion
    assert pixels[0, 0, 3] > pixels[-1, -1, 3] > pixels[0, -1, 3]


def test_drawings_take_the_colours_and_the_font_of_the_page(service: Service) -> None:
    why = explain(service, Image.new("RGB", (50, 40), "red"), "red on the left")
    for drawing in (
        drawings.rank_weights(why.explanations),
        drawings.curves(RUNS["grid-minilm"]),
        drawings.k_planes(128),
    ):
        assert "currentColor" in drawing
        assert "DejaVu" not in drawing
        assert "<style" not in drawing  # it would be for all of the page
        assert drawings.GREY not in drawing
        assert re.search(r'role="img" aria-label="\w', drawing)
        names = re.findall(r' id="([^"]+)"', drawing)
        assert len(names) == len(set(names))


def test_drawings_of_many_visitors_at_once_look_like_those_of_one() -> None:
    """Matplotlib's settings are those of the whole program: nobody may begin to draw while another one does."""
    entered, others = threading.Event(), []
    with ThreadPoolExecutor(1) as pool:

        def first(_: object) -> None:
            others.append(pool.submit(drawings.draw, lambda _: entered.set(), 2, 2, "nothing"))
            assert not entered.wait(0.3)  # on a slow machine it would not have begun anyway

        one = drawings.draw(first, 2, 2, "nothing")
        assert others[0].result(600).count("<text") == one.count("<text")


def test_the_ring_is_where_the_sliders_say_and_k_is_what_the_formulas_say() -> None:
    low, high = drawings.k_mark(0, 0, 128), drawings.k_mark(1, 1.2, 128)
    middle = drawings.k_mark(0.5, 0.6, 128)
    assert low["x"] < high["x"]
    assert low["y"] > high["y"]  # up is less on a page
    assert middle["x"] == pytest.approx((low["x"] + high["x"]) / 2, abs=0.1)
    assert middle["y"] == pytest.approx((low["y"] + high["y"]) / 2, abs=0.1)
    assert (low["paper"], low["official"]) == (127, 127)
    assert (drawings.k_mark(0.4, 1.0, 128)["paper"], drawings.k_mark(0.4, 1.0, 128)["official"]) == (58, 7)


def test_samples_are_spread_over_the_collection(service: Service) -> None:
    assert len(service.samples(4)) == 4
    assert set(service.samples()) <= set(service.files)
    assert json.dumps(service.samples(3))  # plain names
