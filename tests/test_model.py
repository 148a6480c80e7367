"""The joint space, and models on disk: same vectors before and after, clear words about broken folders."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from vse_demo import VSE, Ensemble, ModelConfig
from vse_demo.encoders import SubwordTokenizer, TransformerText, WordTokenizer
from vse_demo.model import load_model
from vse_demo.utils.files import FileError

WORDS = ["red", "green", "field", "left", "right", "the", "a"]
TEXTS = ["a red field", "the green field on the right side of a long fence", "left"]


def make_model(seed: int = 0, dim: int = 16, **settings: object) -> VSE:
    torch.manual_seed(seed)
    config = ModelConfig(**{"dim": dim, "backbone": "test_efficientnet", "image_size": 64, "word_dim": 8, **settings})
    model = VSE(config, WordTokenizer(WORDS))
    model.image_encoder.freeze_backbone()
    return model.eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a small saved model."""
    make_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_vectors_are_unit_float32_one_per_item(pictures: list[Path]) -> None:
    model = make_model()
    for vectors, count in ((model.encode_images(pictures), 10), (model.encode_texts(TEXTS), 3)):
        assert vectors.shape == (count, 16)
        assert vectors.dtype == torch.float32
        assert torch.allclose(vectors.norm(dim=1), torch.ones(count), atol=1e-6)


@pytest.mark.parametrize("pooling", ["adpool", "gpo", "manual", "gcn"])
def test_a_vector_does_not_depend_on_its_batch(pictures: list[Path], pooling: str) -> None:
    model = make_model(pooling=pooling)
    alone = torch.cat([model.encode_texts([text]) for text in TEXTS])
    assert torch.allclose(model.encode_texts(TEXTS), alone, atol=1e-6)
    alone = torch.cat([model.encode_images([picture]) for picture in pictures])
    assert torch.allclose(model.encode_images(pictures, batch_size=4), alone, atol=1e-5)


def test_similarity_is_the_cosine_of_every_pair(pictures: list[Path]) -> None:
    model = make_model()
    images, texts = model.encode_images(pictures), model.encode_texts(TEXTS)
    expected = [[float(np.dot(image, text)) for text in texts.numpy()] for image in images.numpy()]
    assert np.allclose(model.similarity(pictures, TEXTS).numpy(), expected, atol=1e-6)


def test_pil_images_paths_and_strings_are_the_same(pictures: list[Path]) -> None:
    from PIL import Image

    model = make_model()
    path = pictures[0]
    with Image.open(path) as image:
        vectors = model.encode_images([image, path, str(path)])
    assert torch.allclose(vectors, vectors[:1].expand(3, -1), atol=1e-6)


def test_empty_lists_give_no_vectors() -> None:
    model = make_model()
    assert model.encode_images([]).shape == (0, 16)
    assert model.encode_texts([]).shape == (0, 16)


def test_single_items_and_empty_sentences_are_refused(pictures: list[Path]) -> None:
    model = make_model()
    with pytest.raises(TypeError, match="give a list of sentences"):
        model.encode_texts("a red field")
    with pytest.raises(TypeError, match="give a list of pictures"):
        model.encode_images(pictures[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sentence 1 is empty"):
        model.encode_texts(["red", "  "])


def test_regions_enter_without_a_backbone(tmp_path: Path, pictures: list[Path]) -> None:
    model = make_model(vision="region", region_dim=6)
    regions = np.random.default_rng(0).normal(size=(2, 36, 6)).astype(np.float32)
    np.save(tmp_path / "one.npy", regions[1])
    torch.testing.assert_close(model.encode_images(regions)[1:], model.encode_images([tmp_path / "one.npy"]))
    with pytest.raises(TypeError, match="takes precomputed regions"):
        model.encode_images(pictures)
    with pytest.raises(ValueError, match="cells have 5 channels, this encoder takes 6"):
        model.encode_images(regions[:, :, :5])


def test_a_saved_model_gives_exactly_the_same_vectors(saved: Path, pictures: list[Path]) -> None:
    model, again = make_model(), VSE.from_pretrained(saved)
    assert torch.equal(model.encode_images(pictures), again.encode_images(pictures))
    assert torch.equal(model.encode_texts(TEXTS), again.encode_texts(TEXTS))
    assert model.fingerprint() == again.fingerprint()
    assert not again.training


def test_a_saved_bert_model_needs_nothing_but_its_folder(tmp_path: Path, bert_folder: Path) -> None:
    text_config = TransformerText.read_config(str(bert_folder))
    config = ModelConfig(dim=16, vision="region", region_dim=6, text="bert", text_config=text_config)
    model = VSE(config, SubwordTokenizer.from_pretrained(str(bert_folder))).eval()
    model.save_pretrained(tmp_path / "model")
    again = VSE.from_pretrained(tmp_path / "model")
    assert torch.equal(model.encode_texts(TEXTS), again.encode_texts(TEXTS))


def test_frozen_matrices_are_stored_in_half_the_space(saved: Path) -> None:
    stored = load_file(saved / "model.safetensors")
    assert stored["image_encoder.backbone.net.conv_stem.weight"].dtype == torch.float16
    assert stored["image_encoder.projection.linear.weight"].dtype == torch.float32
    make_model().save_pretrained(saved, half=True)
    assert load_file(saved / "model.safetensors")["image_encoder.projection.linear.weight"].dtype == torch.float16


def test_a_model_stored_in_half_precision_is_nearly_the_same(tmp_path: Path, pictures: list[Path]) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "half", half=True)
    images = VSE.from_pretrained(tmp_path / "half").encode_images(pictures)
    assert torch.allclose(images, model.encode_images(pictures), atol=2e-3)


def test_the_card_says_what_the_model_is_and_how_it_did(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "model", metrics={"rsum": 123.4}, card="Trained on nothing.")
    card = (tmp_path / "model" / "README.md").read_text()
    assert all(part in card for part in ("test_efficientnet at 64 px", "bigru", "adpool", "123.4", "on nothing"))


def test_the_fingerprint_changes_with_any_weight() -> None:
    model = make_model()
    before = model.fingerprint()
    with torch.no_grad():
        model.text_encoder.embedding.weight[3, 2] += 1e-3
    assert model.fingerprint() != before


def test_saving_again_replaces_the_whole_folder(saved: Path) -> None:
    (saved / "left-over.txt").write_text("of an older model")
    make_model(seed=1).save_pretrained(saved)
    assert VSE.from_pretrained(saved).fingerprint() == make_model(seed=1).fingerprint()
    assert not (saved / "left-over.txt").exists()


def test_a_failed_save_leaves_the_good_copy(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("vse_demo.model.vse.write_atomic", fail)
    with pytest.raises(OSError, match="disk full"):
        make_model(seed=1).save_pretrained(saved)
    assert VSE.from_pretrained(saved).fingerprint() == make_model().fingerprint()
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return edit


def rename_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["stranger"] = tensors.pop("image_encoder.projection.linear.weight")
    save_file(tensors, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "is not a folder with a model"),
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'), "not of this project"),
        (edit_config(format=99), "has format 99; this version reads format 1"),
        (edit_config(colour="red"), "settings that this version does not know: colour"),
        (edit_config(dim="16"), "dim must be a whole number from 1 to 16384, not '16'"),
        (edit_config(dim=8), "does not fit its config.json"),
        (edit_config(pooling="none"), "describes no model: unknown pooling 'none'"),
        (edit_config(backbone="resnet0"), "describes no model: timm has no model 'resnet0'"),
        (edit_config(text="bert"), "cannot be read as a tokenizer"),
        (lambda folder: (folder / "vocabulary.json").unlink(), "vocabulary.json is missing"),
        (lambda folder: (folder / "vocabulary.json").write_text("{}"), "must be a list of words"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (truncate, "cannot be read as safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x80\x04pickle"), "cannot be read as safetensors"),
        (rename_tensor, "projection.linear.weight is missing .and 1 more"),
    ],
)
def test_a_broken_folder_says_what_is_wrong(saved: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(saved)
    with pytest.raises(FileError, match=message):
        VSE.from_pretrained(saved)


def test_an_ensemble_averages_the_similarities_of_its_members(pictures: list[Path]) -> None:
    members = [make_model(0), make_model(1, dim=24), make_model(2, pooling="gpo")]
    mean = torch.stack([member.similarity(pictures, TEXTS) for member in members]).mean(0)
    ensemble = Ensemble(members)
    assert torch.allclose(ensemble.similarity(pictures, TEXTS), mean, atol=1e-6)
    assert torch.allclose(ensemble.encode_texts(TEXTS).norm(dim=1), torch.ones(3), atol=1e-6)
    assert ensemble.dim == ensemble.encode_texts(TEXTS).shape[1] == 56


def test_members_with_the_same_backbone_share_its_cells(pictures: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    members = [make_model(0), make_model(1), make_model(2)]
    members[1].image_encoder.backbone.load_state_dict(members[0].image_encoder.backbone.state_dict())
    seen = []
    original = VSE.read_image_features
    monkeypatch.setattr(VSE, "read_image_features", lambda self, images: (seen.append(self), original(self, images))[1])
    shared = Ensemble(members).encode_images(pictures)
    assert seen == [members[0], members[2]]
    alone = torch.cat([member.encode_images(pictures) for member in members], dim=1) / 3**0.5
    assert torch.allclose(shared, alone, atol=1e-6)


def test_one_folder_is_a_model_and_several_are_an_ensemble(saved: Path) -> None:
    assert isinstance(load_model([saved]), VSE)
    assert isinstance(load_model([saved, saved]), Ensemble)
    with pytest.raises(ValueError, match="at least one model"):
        Ensemble([])
