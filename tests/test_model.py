"""The joint space, and models on disk: same vectors before and after, clear words about broken folders."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support import paint

from vse_demo import VSE, Ensemble, ModelConfig, TrainConfig, explain
from vse_demo.data import read_image, to_pixels
from vse_demo.encoders import SubwordTokenizer, TransformerText, WordTokenizer
from vse_demo.model import load_model, with_backbone_of
from vse_demo.training import build_model
from vse_demo.utils.files import FileError

WORDS = ["red", "green", "field", "left", "right", "the", "a"]
TEXTS = ["a red field", "the green field on the right side of a long fence", "left"]


def make_model(seed: int = 0, dim: int = 16, **settings: object) -> VSE:
    torch.manual_seed(seed)
    config = ModelConfig(**{"dim": dim, "backbone": "test_efficientnet", "image_size": 64, "word_dim": 8, **settings})
    model = VSE(config, WordTokenizer(WORDS))
    model.image_encoder.freeze_backbone()
    return model.eval()


def make_bert(folder: Path) -> VSE:
    text_config = TransformerText.read_config(str(folder))
    config = ModelConfig(dim=16, vision="region", region_dim=6, text="bert", text_config=text_config)
    return VSE(config, SubwordTokenizer.from_pretrained(str(folder))).eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a small saved model."""
    make_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_vectors_are_unit_float32_one_per_item(images: list[Path]) -> None:
    model = make_model()
    for vectors, count in ((model.encode_images(images), 10), (model.encode_texts(TEXTS), 3)):
        assert vectors.shape == (count, 16)
        assert vectors.dtype == torch.float32
        assert torch.allclose(vectors.norm(dim=1), torch.ones(count), atol=1e-6)


@pytest.mark.parametrize("pooling", ["adpool", "gpo", "manual", "gcn"])
def test_a_vector_does_not_depend_on_its_batch(images: list[Path], pooling: str) -> None:
    model = make_model(pooling=pooling)
    alone = torch.cat([model.encode_texts([text]) for text in TEXTS])
    assert torch.allclose(model.encode_texts(TEXTS), alone, atol=1e-6)
    alone = torch.cat([model.encode_images([image]) for image in images])
    assert torch.allclose(model.encode_images(images, batch_size=4), alone, atol=1e-5)


def test_similarity_is_the_cosine_of_every_pair(images: list[Path]) -> None:
    model = make_model()
    rows, columns = model.encode_images(images), model.encode_texts(TEXTS)
    expected = [[float(np.dot(row, column)) for column in columns.numpy()] for row in rows.numpy()]
    assert np.allclose(model.similarity(images, TEXTS).numpy(), expected, atol=1e-6)


def test_pil_images_paths_and_strings_are_the_same(images: list[Path]) -> None:
    model = make_model()
    path = images[0]
    with Image.open(path) as image:
        vectors = model.encode_images([image, path, str(path)])
    assert torch.allclose(vectors, vectors[:1].expand(3, -1), atol=1e-6)


def test_empty_lists_give_no_vectors() -> None:
    model = make_model()
    assert model.encode_images([]).shape == (0, 16)
    assert model.encode_texts([]).shape == (0, 16)


def test_a_single_item_is_a_list_of_one(images: list[Path]) -> None:
    model, image = make_model(), images[0]
    expected, sentence = model.encode_images([image]), model.encode_texts(["a red field"])
    for single in (image, str(image), read_image(image)):
        torch.testing.assert_close(model.encode_images(single), expected)
    assert torch.equal(model.encode_texts("a red field"), sentence)
    assert model.similarity(image, "a red field").shape == (1, 1)
    ensemble = Ensemble([model, make_model(1)])
    assert ensemble.similarity(image, "a red field").shape == (1, 1)
    regions = make_model(vision="region", region_dim=6)
    assert regions.encode_images(np.ones((36, 6))).shape == (1, 16)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (np.zeros((8, 8, 3)), "takes images or paths of images, not arrays: convert with PIL.Image.fromarray"),
        (None, "an image must be a PIL image, a path, bytes or a tensor, not NoneType"),
    ],
    ids=["array", "nothing"],
)
def test_what_is_no_image_is_refused_by_its_kind(item: object, message: str) -> None:
    for model in (make_model(), Ensemble([make_model()])):
        with pytest.raises(TypeError, match=message):
            model.encode_images([item])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="takes precomputed regions"):
        make_model(vision="region", region_dim=6).encode_images([b"\xff\xd8"])  # type: ignore[list-item]


def test_bytes_and_tensors_are_images(images: list[Path]) -> None:
    model, image = make_model(), images[0]
    expected = model.encode_images(image)
    pixels = torch.from_numpy(np.array(read_image(image))).permute(2, 0, 1)
    for given in (image.read_bytes(), bytearray(image.read_bytes()), pixels, pixels.float() / 255, pixels.unsqueeze(0)):
        torch.testing.assert_close(model.encode_images(given), expected)
    with pytest.raises(FileError, match="the image is not an image that this program reads"):
        model.encode_images(b"\xff\xd8")
    with pytest.raises(FileError, match="the image is empty"):
        model.encode_images(b"")
    for wrong, message in (
        (torch.zeros(1, 8, 8), r"must be \(3, height, width\), not \(1, 8, 8\)"),
        (torch.full((3, 8, 8), 2.0), "values from 0 to 1"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), "must be uint8 or float, not torch.int64"),
    ):
        with pytest.raises(ValueError, match=message):
            model.encode_images(wrong)


def test_bytes_are_no_sentence() -> None:
    with pytest.raises(TypeError, match="sentence 0 must be a string, not bytes"):
        make_model().encode_texts(b"red")  # type: ignore[arg-type]


def test_empty_sentences_are_refused_by_their_number() -> None:
    with pytest.raises(ValueError, match="sentence 1 is empty"):
        make_model().encode_texts(["red", "  "])
    with pytest.raises(TypeError, match="sentence 1 must be a string, not int"):
        make_model().encode_texts(["red", 7])  # type: ignore[list-item]


def test_a_photo_taken_sideways_is_the_same_by_path_and_from_pil(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: the left edge belongs on top
    paint(3).save(tmp_path / "phone.jpg", exif=exif, quality=95)
    model = make_model()
    with Image.open(tmp_path / "phone.jpg") as sideways:
        torch.testing.assert_close(model.encode_images([sideways]), model.encode_images([tmp_path / "phone.jpg"]))


def everything(model: VSE | Ensemble, images: list[Path]) -> list[torch.Tensor]:
    """What a user asks of a model."""
    vectors = [model.encode_images(images[:3]), model.encode_texts(TEXTS), model.similarity(images[:3], TEXTS)]
    members = model.members if isinstance(model, Ensemble) else [model]
    return [*vectors, *(explain(member, images[0], TEXTS[0]).image.parts for member in members)]


@pytest.mark.parametrize("several", [False, True])
def test_a_model_in_training_mode_encodes_as_in_evaluation_mode(several: bool, images: list[Path]) -> None:
    members = [make_model(), make_model(1, projection="linear")][: 1 + several]
    model = Ensemble(members) if several else members[0]
    expected = everything(model, images)
    for member in members:
        member.train()
    states = [{name: tensor.clone() for name, tensor in member.state_dict().items()} for member in members]
    modes = [[part.training for part in member.modules()] for member in members]
    for now, before in zip(everything(model, images), expected, strict=True):
        torch.testing.assert_close(now, before)
    for member, state in zip(members, states, strict=True):
        assert all(torch.equal(tensor, state[name]) for name, tensor in member.state_dict().items())
    assert modes == [[part.training for part in member.modules()] for member in members]
    assert all(member.training for member in members)


def test_a_failed_encoding_goes_back_to_training_mode() -> None:
    model = make_model().train()
    with pytest.raises(FileError):
        model.encode_images(["nowhere.jpg"])
    assert model.training


def test_the_mean_and_deviation_of_pixels_are_stored_with_the_model(saved: Path, images: list[Path]) -> None:
    model = VSE.from_pretrained(saved)
    stored = json.loads((saved / "config.json").read_text())
    settings = model.image_encoder.backbone.net.pretrained_cfg
    assert stored["image_mean"] == list(settings["mean"])
    assert stored["image_std"] == list(settings["std"])
    edit_config(image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.6, 0.7])(saved)
    (saved / "SHA256SUMS").unlink()
    other = VSE.from_pretrained(saved)
    pixels = to_pixels([read_image(images[0])], 64)
    normal = (pixels - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.5, 0.6, 0.7]).view(3, 1, 1)
    with torch.no_grad():
        expected = other.image_encoder.backbone.net.forward_features(normal).flatten(2).mT
    torch.testing.assert_close(other.read_image_features(images[:1]), expected, rtol=1e-3, atol=1e-4)
    assert other.fingerprint() != model.fingerprint()
    assert Ensemble([model, other]).eyes[0] != Ensemble([model, other]).eyes[1]
    other.save_pretrained(saved)
    assert json.loads((saved / "config.json").read_text())["image_mean"] == [0.1, 0.2, 0.3]


def test_a_model_saved_without_mean_and_deviation_takes_those_of_timm(saved: Path, images: list[Path]) -> None:
    content = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(
        json.dumps({k: v for k, v in content.items() if k not in ("image_mean", "image_std")})
    )
    (saved / "SHA256SUMS").unlink()
    model, again = make_model(), VSE.from_pretrained(saved)
    assert model.fingerprint() == again.fingerprint()
    assert torch.equal(model.encode_images(images), again.encode_images(images))


def test_the_backbone_of_a_saved_model_brings_its_settings(saved: Path) -> None:
    edit_config(image_mean=[0.1, 0.2, 0.3])(saved)
    config = ModelConfig(backbone="test_efficientnet", image_size=64)
    assert with_backbone_of(config, saved).image_mean == (0.1, 0.2, 0.3)
    for other in ({"backbone": "test_resnet"}, {"image_size": 96}, {"vision": "patch"}):
        with pytest.raises(
            FileError, match="another backbone or size: pass --vision grid --backbone test_efficientnet --image-size 64"
        ):
            with_backbone_of(replace(config, **other), saved)


def test_a_training_from_a_saved_model_needs_its_backbone(saved: Path) -> None:
    config = TrainConfig(ModelConfig(dim=8, backbone="test_efficientnet", image_size=96), backbone_weights=str(saved))
    with pytest.raises(FileError, match="--image-size 64"):
        build_model(config, TEXTS)
    edit_config(image_mean=[0.1, 0.2, 0.3])(saved)
    model, config = build_model(replace(config, model=replace(config.model, image_size=64)), TEXTS)
    assert model.config.image_mean == config.model.image_mean == (0.1, 0.2, 0.3)
    stored = load_file(saved / "model.safetensors")["image_encoder.backbone.net.conv_stem.weight"]
    assert torch.equal(model.image_encoder.backbone.net.conv_stem.weight, stored.float())


def test_a_model_of_regions_has_no_backbone_to_give(tmp_path: Path) -> None:
    make_model(vision="region", region_dim=6).save_pretrained(tmp_path / "model")
    with pytest.raises(FileError, match="has no backbone: it takes precomputed regions"):
        with_backbone_of(ModelConfig(), tmp_path / "model")


def test_regions_enter_without_a_backbone(tmp_path: Path, images: list[Path]) -> None:
    model = make_model(vision="region", region_dim=6)
    regions = np.random.default_rng(0).normal(size=(2, 36, 6)).astype(np.float32)
    np.save(tmp_path / "one.npy", regions[1])
    torch.testing.assert_close(model.encode_images(regions)[1:], model.encode_images([tmp_path / "one.npy"]))
    with pytest.raises(TypeError, match="takes precomputed regions"):
        model.encode_images(images)
    with pytest.raises(ValueError, match="features have 5 channels, this encoder takes 6"):
        model.encode_images(regions[:, :, :5])


def test_a_saved_model_gives_exactly_the_same_vectors(saved: Path, images: list[Path]) -> None:
    model, again = make_model(), VSE.from_pretrained(saved)
    assert torch.equal(model.encode_images(images), again.encode_images(images))
    assert torch.equal(model.encode_texts(TEXTS), again.encode_texts(TEXTS))
    assert model.fingerprint() == again.fingerprint()
    assert not again.training


def test_a_saved_bert_model_needs_nothing_but_its_folder(tmp_path: Path, bert_folder: Path) -> None:
    model = make_bert(bert_folder)
    model.save_pretrained(tmp_path / "model")
    again = VSE.from_pretrained(tmp_path / "model")
    assert torch.equal(model.encode_texts(TEXTS), again.encode_texts(TEXTS))


def test_frozen_matrices_are_stored_in_half_the_space(saved: Path) -> None:
    stored = load_file(saved / "model.safetensors")
    assert stored["image_encoder.backbone.net.conv_stem.weight"].dtype == torch.float16
    assert stored["image_encoder.projection.linear.weight"].dtype == torch.float32
    make_model().save_pretrained(saved, half=True)
    assert load_file(saved / "model.safetensors")["image_encoder.projection.linear.weight"].dtype == torch.float16


def test_a_model_stored_in_half_precision_is_nearly_the_same(tmp_path: Path, images: list[Path]) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "half", half=True)
    vectors = VSE.from_pretrained(tmp_path / "half").encode_images(images)
    assert torch.allclose(vectors, model.encode_images(images), atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_encodes(images: list[Path], dtype: torch.dtype) -> None:
    model = make_model()
    expected = model.encode_images(images), model.encode_texts(TEXTS)
    model.to(dtype)
    for half, full in zip((model.encode_images(images), model.encode_texts(TEXTS)), expected, strict=True):
        assert half.dtype == torch.float32
        assert (half * full).sum(1).min() > 0.98
    regions = make_model(vision="region", region_dim=6).to(dtype)
    assert regions.encode_images([np.ones((4, 6), np.float32)]).isfinite().all()


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


def test_saving_again_replaces_the_model_and_keeps_what_else_is_there(saved: Path) -> None:
    (saved / "notes").mkdir()
    (saved / "notes" / "thesis.tex").write_text("years of work")
    make_model(seed=1).save_pretrained(saved)
    assert VSE.from_pretrained(saved).fingerprint() == make_model(seed=1).fingerprint()
    assert (saved / "notes" / "thesis.tex").read_text() == "years of work"


def test_a_model_of_another_kind_leaves_no_file_of_the_one_before(saved: Path, bert_folder: Path) -> None:
    make_bert(bert_folder).save_pretrained(saved)
    assert sorted(path.name for path in saved.iterdir()) == [
        "README.md", "SHA256SUMS", "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip


def test_a_model_without_checksums_can_be_saved_over(saved: Path) -> None:
    (saved / "SHA256SUMS").unlink()
    make_model(seed=1).save_pretrained(saved)
    assert VSE.from_pretrained(saved).fingerprint() == make_model(seed=1).fingerprint()


@pytest.mark.parametrize("name", ["README.md", "config.json"])
def test_a_model_does_not_overwrite_what_it_has_not_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"model_type": "bert"}')
    with pytest.raises(FileError, match=f"{name} was not saved by this program: choose another folder"):
        make_model().save_pretrained(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, '{"model_type": "bert"}')]


def test_a_failed_save_leaves_the_good_copy(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("vse_demo.model.dual.write_atomic", fail)
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
        (edit_config(image_std=[0, 1, 1]), "image_std must be three numbers, one for each colour, not .0, 1, 1."),
        (edit_config(image_mean=0.5), "image_mean must be three numbers, one for each colour, not 0.5"),
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


def test_an_ensemble_averages_the_similarities_of_its_members(images: list[Path]) -> None:
    members = [make_model(0), make_model(1, dim=24), make_model(2, pooling="gpo")]
    mean = torch.stack([member.similarity(images, TEXTS) for member in members]).mean(0)
    ensemble = Ensemble(members)
    assert torch.allclose(ensemble.similarity(images, TEXTS), mean, atol=1e-6)
    assert torch.allclose(ensemble.encode_texts(TEXTS).norm(dim=1), torch.ones(3), atol=1e-6)
    assert ensemble.dim == ensemble.encode_texts(TEXTS).shape[1] == 56


def test_members_with_the_same_backbone_share_its_features(images: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    members = [make_model(0), make_model(1), make_model(2)]
    members[1].image_encoder.backbone.load_state_dict(members[0].image_encoder.backbone.state_dict())
    seen = []
    original = VSE.read_image_features
    monkeypatch.setattr(VSE, "read_image_features", lambda self, images: (seen.append(self), original(self, images))[1])
    shared = Ensemble(members).encode_images(images)
    assert seen == [members[0], members[2]]
    alone = torch.cat([member.encode_images(images) for member in members], dim=1) / 3**0.5
    assert torch.allclose(shared, alone, atol=1e-6)


def test_one_folder_is_a_model_and_several_are_an_ensemble(saved: Path) -> None:
    assert isinstance(load_model([saved]), VSE)
    assert isinstance(load_model([saved, saved]), Ensemble)
    with pytest.raises(ValueError, match="at least one model"):
        Ensemble([])
