"""A model that is not ours: a CLIP in a wrapper of twenty lines is evaluated, searched with, and shown in the app."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTextConfig, CLIPVisionConfig

from vse_demo import VSE, EmbeddingModel, Ensemble, Gallery, ModelConfig, evaluate, open_dataset
from vse_demo.app.actions import Actions
from vse_demo.app.service import Service
from vse_demo.data.images import as_image
from vse_demo.encoders import WordTokenizer
from vse_demo.utils.progress import in_batches
from vse_demo.utils.tensors import l2_normalize

WORDS = ["a", "red", "green", "blue", "field", "beside", "left", "right", "on", "the"]


def small_clip() -> CLIPModel:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = CLIPTextConfig(vocab_size=300, max_position_embeddings=64, projection_dim=12, eos_token_id=2, **sizes)
    vision = CLIPVisionConfig(image_size=32, patch_size=16, projection_dim=12, **sizes)
    torch.manual_seed(0)
    return CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=12)).eval()


class CLIP:
    """The wrapper of the protocol's documentation, with a tokenizer that needs no file."""

    def __init__(self) -> None:
        self.model, self.dim = small_clip(), 12
        self.processor = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})

    @torch.inference_mode()
    def encode_images(self, images, batch_size=32, progress=False):
        vectors = [torch.empty(0, self.dim)]
        for batch in in_batches(images, batch_size, "images", progress):
            inputs = self.processor(images=[as_image(image) for image in batch], return_tensors="pt")
            vectors.append(self.model.get_image_features(**inputs).pooler_output)
        return l2_normalize(torch.cat(vectors))

    @torch.inference_mode()
    def encode_texts(self, texts, batch_size=128, progress=False):
        vectors = [torch.empty(0, self.dim)]
        for text in texts:
            tokens = [1, *(3 + ord(sign) % 256 for sign in text[:60]), 2]
            vectors.append(self.model.get_text_features(input_ids=torch.tensor([tokens])).pooler_output)
        return l2_normalize(torch.cat(vectors))

    def fingerprint(self):
        return hashlib.blake2b(self.model.logit_scale.detach().numpy().tobytes(), digest_size=8).hexdigest()


def small_vse() -> VSE:
    torch.manual_seed(0)
    config = ModelConfig(dim=8, backbone="test_efficientnet", image_size=64, word_dim=4)
    return VSE(config, WordTokenizer(WORDS)).eval()


def test_our_models_and_a_wrapper_are_what_the_protocol_describes() -> None:
    vse = small_vse()
    for model in (vse, Ensemble([vse]), CLIP()):
        assert isinstance(model, EmbeddingModel)
    assert not isinstance(small_clip(), EmbeddingModel)


def test_a_wrapper_is_evaluated_and_searched(karpathy_folder: Path, tmp_path: Path) -> None:
    model, data = CLIP(), open_dataset(karpathy_folder).split("test")
    metrics = evaluate(
        model.encode_images(data.images), model.encode_texts(data.captions), torch.from_numpy(data.image_ids)
    )
    assert metrics["images"] == 4
    Gallery.build(model, data, progress=False).save(tmp_path / "gallery")
    gallery = Gallery.load(tmp_path / "gallery", model)
    hit, *_ = gallery.search_images(data.captions[0])
    scores = model.encode_images(data.images) @ model.encode_texts(data.captions[:1]).T
    assert hit.score == pytest.approx(float(scores.max()), abs=1e-3)  # stored in half precision
    assert hit.item == data.names[int(scores.argmax())]


def test_an_ensemble_of_a_wrapper_and_a_vse_scores_their_mean(images: list[Path]) -> None:
    vse, clip = small_vse(), CLIP()
    mixed, texts = Ensemble([vse, clip, vse]), ["red on the left", "a green field"]
    assert mixed.dim == 8 + 12 + 8
    of_clip = clip.encode_images(images) @ clip.encode_texts(texts).T
    torch.testing.assert_close(mixed.similarity(images, texts), (2 * vse.similarity(images, texts) + of_clip) / 3)


@pytest.mark.parametrize("make", [CLIP, lambda: Ensemble([small_vse(), CLIP()])])
def test_the_app_searches_with_it_and_gives_no_reasons(
    make: Callable[[], EmbeddingModel], karpathy_folder: Path
) -> None:
    model, data = make(), open_dataset(karpathy_folder).split("test")
    gallery = Gallery.build(model, data, progress=False)
    files = dict(zip(data.names, data.images, strict=True))
    service = Service({"given": lambda _: gallery}, files, {}, lambda *_: None)
    sentence, image = service.encode_text(data.captions[0]), service.encode_image(data.images[0])
    assert [hit.item for hit in service.find_images(sentence, 3)] == [
        hit.item for hit in gallery.search_images(data.captions[0], 3)
    ]
    assert service.recognise(image).name == data.names[0]
    assert not service.gives_reasons()
    with pytest.raises(ValueError, match="gives no reasons"):
        service.explain(image, sentence)
    assert Actions(service).explain(data.names[0], sentence, 0) == ""
