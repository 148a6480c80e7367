"""CLIP, ALIGN and SigLIP: small random models of the real classes, saved as transformers does, used like any model."""

import json
from pathlib import Path

import pytest
import torch
from support import paint

from vse_demo import Gallery, open_dataset
from vse_demo.app.actions import Actions
from vse_demo.app.service import Service
from vse_demo.cli import main
from vse_demo.model import EmbeddingModel, Ensemble, PretrainedModel, is_pretrained, load_model
from vse_demo.utils.files import FileError

TEXTS = ["a red field", "green on the left, blue on the right, and something yellow beside it", "left"]
BODY = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def save_tokenizer(folder: Path, words: list[str]) -> int:
    """A tokenizer of whole words with the special tokens that CLIP, BERT and SigLIP know; how many tokens it has."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = ["<pad>", "<unk>", "<s>", "</s>", *words]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("<s>", 2), ("</s>", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return len(vocabulary)


def save_model(kind: str, folder: Path) -> Path:
    import transformers as hf

    words = sorted({word for text in TEXTS for word in text.replace(",", " ").split()})
    text = {"vocab_size": save_tokenizer(folder, words), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    vision = {**BODY, "image_size": 32, "patch_size": 8}
    size = {"height": 32, "width": 32}
    torch.manual_seed(0)
    if kind == "clip":
        long = {**BODY, **text, "max_position_embeddings": 16}
        model = hf.CLIPModel(hf.CLIPConfig(text_config=long, vision_config=vision, projection_dim=12))
        hf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=size).save_pretrained(folder)
    elif kind == "siglip":
        long = {**BODY, **text, "max_position_embeddings": 64}
        model = hf.SiglipModel(hf.SiglipConfig(text_config=long, vision_config=vision))
        hf.SiglipImageProcessor(size=size).save_pretrained(folder)
    elif kind == "siglip2":
        long, patches = {**BODY, **text, "max_position_embeddings": 64}, {"patch_size": 8, "num_patches": 16}
        model = hf.Siglip2Model(hf.Siglip2Config(text_config=long, vision_config={**BODY, **patches}))
        hf.Siglip2ImageProcessor(patch_size=8, max_num_patches=16).save_pretrained(folder)
    else:
        long = {**BODY, **text, "max_position_embeddings": 32}
        small = {"image_size": 32, "width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 32}
        model = hf.AlignModel(hf.AlignConfig(text_config=long, vision_config=small, projection_dim=32))
        for parameter in model.vision_model.parameters():
            if parameter.dim() > 1:  # as transformers begins, so few channels give zeros
                torch.nn.init.kaiming_normal_(parameter)
        hf.EfficientNetImageProcessor(size=size).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["clip", "align", "siglip", "siglip2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(request.param, tmp_path_factory.mktemp(request.param))


def test_vectors_are_unit_float32_and_do_not_depend_on_the_batch(folder: Path, images: list[Path]) -> None:
    model = PretrainedModel.from_pretrained(folder)
    assert isinstance(model, EmbeddingModel)
    for encode, items in ((model.encode_images, images), (model.encode_texts, TEXTS)):
        vectors = encode(items)
        assert vectors.shape == (len(items), model.dim)
        assert vectors.dtype == torch.float32
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(items)))
        torch.testing.assert_close(torch.cat([encode([item]) for item in items]), vectors, atol=1e-5, rtol=1e-4)
        assert encode([]).shape == (0, model.dim)
    assert model.similarity(images[0], TEXTS).shape == (1, 3)


def test_vectors_are_those_of_transformers(folder: Path) -> None:
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    net, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    model, image = PretrainedModel.from_pretrained(folder), paint(3)
    if net.config.model_type.startswith("siglip"):  # it has always seen 64 tokens
        tokens = {
            "input_ids": tokenizer(TEXTS[:1], padding="max_length", max_length=64, return_tensors="pt")["input_ids"]
        }
    else:
        tokens = tokenizer(TEXTS[:1], return_tensors="pt", return_token_type_ids=False)
    pixels = AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")
    with torch.inference_mode():
        scores = net(**tokens, **pixels).logits_per_image
        if net.config.model_type.startswith("siglip"):
            scores = (scores - net.logit_bias) / net.logit_scale.exp()
        elif net.config.model_type == "align":
            scores = scores * net.temperature
        else:
            scores = scores / net.logit_scale.exp()
    torch.testing.assert_close(model.similarity(image, TEXTS[:1]), scores, atol=1e-5, rtol=1e-4)


def test_it_is_loaded_by_folder_and_fits_galleries_and_ensembles(folder: Path, karpathy_folder: Path) -> None:
    model = load_model([folder])
    assert isinstance(model, PretrainedModel)
    assert isinstance(load_model([folder, folder]), Ensemble)
    assert model.fingerprint() == PretrainedModel.from_pretrained(folder).fingerprint()
    data = open_dataset(karpathy_folder).split("test")
    gallery = Gallery.build(model, data, progress=False)
    assert gallery.search_images("a red field", 3)[0].score >= gallery.search_images("a red field", 3)[2].score
    assert len(gallery.search_captions(data.images[0], 2)) == 2


@pytest.mark.parametrize("verb", ["search", "embed", "evaluate"])
def test_a_device_that_is_not_there_gets_one_clear_line(
    folder: Path, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", "default"] if verb != "search" else ["red"]
    out = ["--out", str(tmp_path / "vectors.npy")] if verb == "embed" else []
    assert main([verb, *data, *out, "--model", str(folder), "--device", "nonsense"]) == 1
    assert "device 'nonsense' cannot be used here" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_indexes_searches_and_evaluates(
    folder: Path, karpathy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data, gallery = str(folder), str(karpathy_folder), str(tmp_path / "gallery")
    assert main(["index", "--model", model, "--data", data, "--gallery", gallery]) == 0
    assert main(["search", "a red field", "--gallery", gallery, "-k", "2"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "--model", model, "--data", data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 4


def test_the_app_serves_it_without_reasons(karpathy_folder: Path, tmp_path: Path) -> None:
    model, data = PretrainedModel.from_pretrained(save_model("clip", tmp_path)), open_dataset(karpathy_folder)
    test = data.split("test")
    gallery = Gallery.build(model, test, progress=False)
    files = dict(zip(test.names, test.images, strict=True))
    service = Service({"clip": lambda _: gallery}, files, {}, lambda *_: None)
    sentence, image = service.encode_text(TEXTS[0]), service.encode_image(test.images[0])
    for found, expected in (
        (service.find_images(sentence, 3), gallery.search_images(TEXTS[0], 3)),
        (service.find_captions(image, 3), gallery.search_captions(test.images[0], 3)),
    ):
        assert [hit.item for hit in found] == [hit.item for hit in expected]
    assert not service.gives_reasons()
    with pytest.raises(ValueError, match="This model gives no reasons"):
        service.explain(image, sentence)
    about = Actions(service).explain(test.names[0], sentence, 0)  # what the picture is can be told all the same
    assert test.names[0] in about
    assert 'class="words"' not in about


def test_what_is_not_one_of_them_is_said(tmp_path: Path, bert_folder: Path) -> None:
    assert not is_pretrained(tmp_path)
    assert not is_pretrained(bert_folder)
    assert not is_pretrained("nobody/nothing-of-this-name")
    with pytest.raises(FileError, match="is none of clip, align, siglip, siglip2"):
        PretrainedModel.from_pretrained(bert_folder)


def test_a_folder_without_its_weights_is_refused(tmp_path: Path) -> None:
    save_model("clip", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileError, match="cannot be loaded by transformers"):
        PretrainedModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(("texts", "error", "message"), [
    ([""], ValueError, "sentence 0 is empty"),
    (["a", 3], TypeError, "sentence 1 must be a string, not int"),
])  # fmt: skip
def test_sentences_are_checked(tmp_path: Path, texts: list, error: type, message: str) -> None:
    model = PretrainedModel.from_pretrained(save_model("clip", tmp_path))
    with pytest.raises(error, match=message):
        model.encode_texts(texts)
