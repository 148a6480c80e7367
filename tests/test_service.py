"""What the app asks for, on a small random model over a few painted pictures."""

import base64
import dataclasses
import io
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vse_demo.app.map
from vse_demo import VSE, Ensemble, Gallery, ModelConfig, open_dataset
from vse_demo.app.html import drawings, results
from vse_demo.app.html import map as map_html
from vse_demo.app.map import charted, compute_map
from vse_demo.app.service import SearchResult, Service, cached_gallery, check_sentence, mean_grid, open_service
from vse_demo.data import read_image
from vse_demo.encoders import SubwordTokenizer, TransformerText, WordTokenizer
from vse_demo.utils.files import FileError

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
    return Service({"one": lambda _: Gallery(model)}, {}, {}, lambda _, gallery: compute_map(gallery))


@pytest.fixture
def service(karpathy_folder: Path, tmp_path: Path) -> Service:
    make_model().save_pretrained(tmp_path / "model")
    return open_service(karpathy_folder, [tmp_path / "model"])


def test_a_caption_of_the_collection_is_ticked_and_crossed(service: Service) -> None:
    gallery = service.gallery()
    found = service.find_images(gallery.captions[7], k=len(gallery))
    own = gallery.names[gallery.image_ids[7]]
    assert [each.item for each in found if each.right] == [own]
    assert all(each.right is not None for each in found)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


def test_a_sentence_that_nobody_wrote_is_not_marked(service: Service) -> None:
    assert {each.right for each in service.find_images("something quite new")} == {None}


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
    found = service.find_captions(image, k=len(gallery.captions))
    right = {each.item for each in found if each.right}
    assert right == {
        text for text, image_ids in zip(gallery.captions, gallery.image_ids, strict=True) if image_ids == 3
    }


def test_a_strange_picture_is_not_marked(service: Service) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8))
    assert service.recognise(noise) is None
    assert {each.right for each in service.find_captions(noise)} == {None}


def test_reasons_add_up(service: Service) -> None:
    gallery = service.gallery()
    why = service.explain(service.file(gallery.names[0]), "red on the left")
    assert why.words == ["red", "on", "the", "left"]
    assert why.cells.sum() == pytest.approx(why.score, abs=1e-5)
    assert why.parts.sum() + why.rest == pytest.approx(why.score, abs=1e-5)
    assert why.rest == 0  # nothing is put around a sentence of words


@pytest.mark.parametrize("sentence", ["red", "Red, on the left!", "– ? –", "“red” rock-solid 😀 a\u0301b"])
def test_the_reasons_of_an_ensemble_are_the_means_of_its_members(bert_folder: Path, sentence: str) -> None:
    """Members that read and see differently: words and pieces of words, 2 × 2 and 3 × 3 cells."""
    members = [make_model(0), make_bert(bert_folder, image_size=96)]
    service = service_of(Ensemble(members))
    image = Image.new("RGB", (50, 40), "red")
    why = service.explain(image, sentence)
    assert why.score == pytest.approx(float(np.mean([float(m.similarity([image], [sentence])) for m in members])))
    assert why.cells.shape == (6, 6)
    assert why.cells.sum() == pytest.approx(why.score, abs=1e-5)
    assert len(why.parts) == len(why.words)
    assert why.parts.sum() + why.rest == pytest.approx(why.score, abs=1e-5)
    alone = [service_of(member).explain(image, sentence) for member in members]
    assert np.allclose(why.parts, np.mean([each.parts for each in alone], axis=0), atol=1e-6)
    assert why.rest == pytest.approx(alone[1].rest / 2)
    assert len(why.members) == 2


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
    for search in (lambda: service.find_images(sentence), lambda: check_sentence(sentence)):
        with pytest.raises(ValueError, match=message):
            search()


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/passwd", "nothing.jpg", ""])
def test_no_file_outside_the_collection_is_given(service: Service, name: str) -> None:
    with pytest.raises(FileError, match="there is no picture"):
        service.file(name)


def test_an_unknown_model_is_refused(service: Service) -> None:
    with pytest.raises(ValueError, match="unknown model 'clip'; choose one of given"):
        service.find_images("red", "clip")


def test_regions_cannot_be_shown(precomp_folder: Path) -> None:
    with pytest.raises(FileError, match="holds precomputed regions, which cannot be shown"):
        open_service(precomp_folder)


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
        assert torch.allclose(*vectors, atol=1e-5)


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
    first = cached_gallery(model, dataset, root=tmp_path)
    [file] = tmp_path.rglob("gallery.safetensors")
    file.write_bytes(b"half")
    assert torch.allclose(cached_gallery(model, dataset, root=tmp_path).image_vectors, first.image_vectors, atol=1e-6)


def test_everyone_who_waits_sees_how_far_the_reading_of_a_folder_is(
    tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    for number in range(40):  # two batches
        save_picture(tmp_path / "mine" / f"{number}.png", number)
    go = threading.Event()

    def source(report: Callable[[int, int], object]) -> Gallery:
        def slow(done: int, total: int) -> None:
            report(done, total)
            go.wait(20)

        return cached_gallery(make_model(), open_dataset(tmp_path / "mine"), slow, tmp_path / "cache")

    service = Service({"slow": source}, {}, {}, lambda _, gallery: compute_map(gallery))
    first, second = service.progress(every=0.01), service.progress(every=0.01)
    for waiting in (first, second):
        assert next(step for step in waiting if step != (0, 0)) == (32, 40)
    go.set()
    assert len(service.gallery()) == 40
    assert list(service.progress()) == []


def test_a_gallery_that_failed_says_why_and_is_tried_again() -> None:
    galleries = iter([FileError("the disk is full"), Gallery(make_model())])

    def source(_: object) -> Gallery:
        gallery = next(galleries)
        if isinstance(gallery, Exception):
            raise gallery
        return gallery

    service = Service({"one": source}, {}, {}, lambda _, gallery: compute_map(gallery))
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
    assert np.array_equal(places, compute_map(gallery))


def test_a_query_lands_on_itself(service: Service) -> None:
    gallery, places = service.gallery(), service.map()
    size = np.ptp(places, axis=0).max()
    number = len(gallery) + 3
    assert np.abs(service.place(gallery.captions[3], neighbours=1) - places[number]).max() < 0.3 * size
    image = read_image(service.file(gallery.names[2]))
    assert np.abs(service.place(image, neighbours=1) - places[2]).max() < 1e-4 * size + 1e-3


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "${alert(1)}",
    "{{constructor}}",
    "`x`",
    "\\u003c",
]


def pieces_of_the_page(text: str) -> list[str]:
    """Everything that shows what strangers wrote, showing this."""

    def photo(_: str) -> Image.Image:
        return Image.new("RGB", (9, 9))

    model = make_model()
    gallery = Gallery(model)
    gallery.names, gallery.captions, gallery.image_ids = [text], [text], np.array([0])
    found = [SearchResult(text, 0, 0.5, True), SearchResult(text, 1, 0.4, False), SearchResult(text, 2, -0.3, None)]
    return [
        map_html.draw_atlas(gallery, np.array([[0.0, 0.0], [1.0, 1.0]]), photo, lambda name: name),
        results.image_cards(text, found, photo, lambda name: name),
        results.caption_cards(text, found),
        results.sample_cards([text], photo, lambda name: name),
        results.reasons(photo(text), service_of(model).explain(photo(text), text), 0.3),
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_strangers_wrote_is_nothing_but_text_on_the_page(text: str) -> None:
    calm = pieces_of_the_page("calm")
    for piece, usual in zip(pieces_of_the_page(text), calm, strict=True):
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
    monkeypatch.setattr(vse_demo.app.map, "MAX_CHARTED", 3)
    gallery = Gallery(make_model())
    gallery.names, gallery.image_ids = list("abcdefgh"), np.repeat(np.arange(8), 5)
    images, captions = charted(gallery)
    assert len(images) == len(set(images)) == 3
    assert sorted(gallery.image_ids[captions].tolist()) == sorted(images * 5)


def test_a_sentence_has_a_place_among_pictures_without_captions(
    tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    for number in range(6):
        save_picture(tmp_path / "mine" / f"{number}.png", number)
    make_model().save_pretrained(tmp_path / "model")
    service = open_service(tmp_path / "mine", [tmp_path / "model"])
    assert np.isfinite(service.place("red")).all()
    assert service.find_captions(Image.new("RGB", (9, 9))) == []
    assert service.usual_score() is None
    assert service.examples() == []
    assert service.describe("3.png") == "3.png"


# Pieces of the page


def test_results_are_buttons_with_marks_scores_and_alternative_texts() -> None:
    found = [SearchResult("a.jpg", 0, 0.512, True), SearchResult("b.jpg", 1, -0.07, False)]
    cards = results.image_cards("title", found, lambda _: Image.new("RGB", (90, 60)), lambda name: f"of {name}")
    assert re.findall(r'aria-pressed="(\w+)"', cards) == ["true", "false"]
    assert re.findall(r'alt="([^"]*)"', cards) == ["of a.jpg", "of b.jpg"]
    assert re.findall(r'class="score">([^<]*)', cards) == ["0.51", "−0.07"]
    assert cards.index("✓") < cards.index("✗")
    assert "✓" not in results.caption_cards("title", [SearchResult("A dog.", 0, 0.4, None)])


def test_bars_over_words_are_as_high_as_their_parts(service: Service) -> None:
    image = Image.new("RGB", (50, 40), "red")
    why = dataclasses.replace(service.explain(image, "one two three"), parts=np.array([0.3, -0.1, 0.1]), rest=0.0)
    piece = results.reasons(image, why, None)
    bars = re.findall(r"bottom: ([\d.]+)%; height: ([\d.]+)%", piece)
    assert [tuple(map(float, bar)) for bar in bars] == [(25, 75), (0, 25), (25, 25)]
    assert piece.count('class="minus"') == 1
    assert "(start, end)" not in piece


def test_a_heat_map_has_the_shape_of_its_picture_and_the_colours_of_its_parts(service: Service) -> None:
    image = Image.new("RGB", (200, 100), "white")
    why = dataclasses.replace(service.explain(image, "red"), cells=np.array([[0.4, 0.0], [0.0, -0.2]]))
    piece = results.reasons(image, why, None)
    assert "aspect-ratio: 2.000" in piece
    coded = re.search(r"data:image/png;base64,([^\"]+)", piece)
    assert coded
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(coded[1]))))
    assert pixels[0, 0, 1] > pixels[0, 0, 0]  # green
    assert pixels[-1, -1, 0] > pixels[-1, -1, 1]  # vermilion
    assert pixels[0, 0, 3] > pixels[-1, -1, 3] > pixels[0, -1, 3]


def test_drawings_take_the_colours_and_the_font_of_the_page(service: Service) -> None:
    why = service.explain(Image.new("RGB", (50, 40), "red"), "red on the left")
    for drawing in (drawings.rank_weights(why.members), drawings.curves("shipped-minilm"), drawings.k_planes(128)):
        assert "currentColor" in drawing
        assert "DejaVu" not in drawing
        assert "<style" not in drawing  # it would be for all of the page
        assert drawings.GREY not in drawing
        assert re.search(r'role="img" aria-label="\w', drawing)
        names = re.findall(r' id="([^"]+)"', drawing)
        assert len(names) == len(set(names))


def test_drawings_of_many_visitors_at_once_look_like_those_of_one() -> None:
    def draw(start: float, seconds: float) -> int:
        time.sleep(start)
        return drawings.draw(lambda _: time.sleep(seconds), 2, 2, "nothing").count("<text")

    with ThreadPoolExecutor() as pool:
        [one, other] = pool.map(draw, (0, 0.1), (0.3, 0.4))  # one ends while the other draws
    assert one == other == draw(0, 0)


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
