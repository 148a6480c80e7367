"""What the app asks for, on a small random model over a few painted pictures."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vse_demo import VSE, Ensemble, Gallery, ModelConfig, atlas, figures, open_dataset
from vse_demo.data import read_image
from vse_demo.files import FileError
from vse_demo.service import Service, cached_gallery, check_sentence, draw_map, open_service
from vse_demo.text import WordTokenizer

COLOURS = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple", "left", "right"]


def make_model(seed: int = 0, dim: int = 16) -> VSE:
    torch.manual_seed(seed)
    config = ModelConfig(dim=dim, backbone="test_efficientnet", image_size=64, word_dim=8)
    return VSE(config, WordTokenizer(COLOURS)).eval()


@pytest.fixture
def service(karpathy_folder: Path, tmp_path: Path) -> Service:
    make_model().save_pretrained(tmp_path / "model")
    return open_service(karpathy_folder, [tmp_path / "model"])


def test_a_caption_of_the_collection_is_ticked_and_crossed(service: Service) -> None:
    gallery = service.gallery()
    found = service.find_images(gallery.captions[7], k=len(gallery))
    own = gallery.names[gallery.owner[7]]
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
    picture = read_image(service.file(gallery.names[3]))
    if shape == "smaller":
        picture = picture.resize((40, 30))
    else:
        picture.save(tmp_path / "copy.png")
        picture = read_image(tmp_path / "copy.png")
    found = service.find_captions(picture, k=len(gallery.captions))
    right = {each.item for each in found if each.right}
    assert right == {text for text, owner in zip(gallery.captions, gallery.owner, strict=True) if owner == 3}


def test_a_strange_picture_is_not_marked(service: Service) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8))
    assert service.recognise(noise) is None
    assert {each.right for each in service.find_captions(noise)} == {None}


def test_reasons_add_up(service: Service) -> None:
    gallery = service.gallery()
    why = service.explain(service.file(gallery.names[0]), "red on the left")
    assert float(why.image.parts.sum()) == pytest.approx(why.score, abs=1e-5)
    assert float(why.text.parts.sum()) == pytest.approx(why.score, abs=1e-5)


def test_an_ensemble_gives_the_reasons_of_its_first_member(karpathy_folder: Path) -> None:
    members = [make_model(0), make_model(1)]
    gallery = Gallery.build(Ensemble(members), open_dataset(karpathy_folder).split("test"), progress=False)
    service = Service({"both": lambda: gallery}, {}, lambda _, gallery: draw_map(gallery))
    picture = Image.new("RGB", (50, 40), "red")
    assert service.explain(picture, "red").score == pytest.approx(float(members[0].similarity([picture], ["red"])))


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
    first = cached_gallery(model, dataset, tmp_path)
    encoded: list[int] = []
    original = VSE.encode_images

    def counted(self: VSE, images: Sequence[object], *rest: object, **more: object) -> torch.Tensor:
        encoded.append(len(images))
        return original(self, images)

    monkeypatch.setattr(VSE, "encode_images", counted)
    again = cached_gallery(model, dataset, tmp_path)
    assert sum(encoded) == 0
    assert torch.equal(first.image_vectors, again.image_vectors)
    assert len(cached_gallery(make_model(1), dataset, tmp_path)) == len(first)  # another model, another cache
    assert sum(encoded) == len(first)


def test_pictures_that_come_and_go(
    tmp_path: Path, save_picture: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = tmp_path / "mine", make_model()
    for number in range(4):
        save_picture(folder / f"{number}.png", number)
    assert len(cached_gallery(model, open_dataset(folder), tmp_path / "cache")) == 4
    (folder / "1.png").unlink()
    save_picture(folder / "9.png", 9)
    gallery = cached_gallery(model, open_dataset(folder), tmp_path / "cache")
    assert sorted(gallery.names) == ["0.png", "2.png", "3.png", "9.png"]
    fresh = Gallery.build(model, open_dataset(folder).split("all"), progress=False)
    for name in gallery.names:
        vectors = [each.image_vectors[each.names.index(name)] for each in (gallery, fresh)]
        assert torch.allclose(*vectors, atol=1e-5)


def test_captions_go_with_their_pictures(karpathy_folder: Path) -> None:
    gallery = Gallery.build(make_model(), open_dataset(karpathy_folder).split("test"), progress=False)
    before = {text: gallery.names[owner] for text, owner in zip(gallery.captions, gallery.owner, strict=True)}
    kept = gallery.names[1:3]
    assert gallery.keep(kept) == 2
    assert gallery.names == kept
    after = {text: gallery.names[owner] for text, owner in zip(gallery.captions, gallery.owner, strict=True)}
    assert after == {text: name for text, name in before.items() if name in kept}
    assert gallery.keep(kept) == 0


def test_a_broken_cache_is_made_anew(karpathy_folder: Path, tmp_path: Path) -> None:
    model, dataset = make_model(), open_dataset(karpathy_folder)
    first = cached_gallery(model, dataset, tmp_path)
    [file] = tmp_path.rglob("gallery.safetensors")
    file.write_bytes(b"half")
    assert torch.allclose(cached_gallery(model, dataset, tmp_path).image_vectors, first.image_vectors, atol=1e-6)


# The map


def test_the_map_has_a_place_for_everything_and_is_the_same_every_time(service: Service) -> None:
    gallery = service.gallery()
    assert not service.drawn()
    places = service.map()
    assert service.drawn()
    assert places.shape == (len(gallery) + len(gallery.captions), 2)
    assert np.array_equal(places, draw_map(gallery))


def test_a_query_lands_on_itself(service: Service) -> None:
    gallery, places = service.gallery(), service.map()
    size = np.ptp(places, axis=0).max()
    number = len(gallery) + 3
    assert np.abs(service.place(gallery.captions[3], neighbours=1) - places[number]).max() < 0.3 * size
    picture = read_image(service.file(gallery.names[2]))
    assert np.abs(service.place(picture, neighbours=1) - places[2]).max() < 1e-4 * size + 1e-3


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "${alert(1)}",
    "{{constructor}}",
    "`x`",
    "\\u003c",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_strangers_wrote_is_nothing_but_text_on_the_map(text: str) -> None:
    gallery = Gallery(make_model())
    gallery.names, gallery.captions, gallery.owner = [text], [text], np.array([0])
    page = atlas.draw_atlas(gallery, np.array([[0.0, 0.0], [1.0, 1.0]]), lambda name: Image.new("RGB", (9, 9)))
    template = page["html_template"]
    assert "<script" not in template
    assert "<img" not in template
    assert "onerror=alert" not in template.replace("&quot;&gt;&lt;img src=x onerror=alert", "")
    assert template.count("${") == 3  # the three of the mark
    assert "{{" not in template
    assert "`" not in template
    assert not set("<>\"'`${}\\") & set(atlas.mark(np.zeros(2), np.eye(2), text)["label"])


def test_the_mark_is_inside_the_drawing() -> None:
    places = np.array([[0.0, 5.0], [10.0, 25.0]])
    for place in places:
        mark = atlas.mark(place, places, "here")
        assert 0 < mark["x"] < atlas.SIZE[0]
        assert 0 < mark["y"] < atlas.SIZE[1]


def test_figures_are_pictures_on_transparent_paper(service: Service) -> None:
    gallery = service.gallery()
    picture = read_image(service.file(gallery.names[0]))
    why = service.explain(picture, "red on the left")
    for figure in (figures.heat_map(picture, why), figures.word_bars(why), figures.rank_weights(why)):
        pixels = np.asarray(figure)
        assert pixels.shape[2] == 4
        assert pixels[0, 0, 3] == 0
        assert (pixels[..., 3] > 0).any()
    assert figures.balance_text(why.image).endswith("soft maximum")
    assert figures.k_planes(0.4, 1.0, 128).width > 600


def test_samples_are_spread_over_the_collection(service: Service) -> None:
    assert len(service.samples(4)) == 4
    assert set(service.samples()) <= set(service.files)
    assert json.dumps(service.samples(3))  # plain names
