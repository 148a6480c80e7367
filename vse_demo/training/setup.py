"""A new model with its pretrained parts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vse_demo.data.layouts import CaptionedImages, read_captions
from vse_demo.encoders.text import TransformerText, read_word_vectors
from vse_demo.encoders.tokenizers import SubwordTokenizer, Tokenizer, WordTokenizer
from vse_demo.model.vse import VSE
from vse_demo.training.config import TrainConfig
from vse_demo.utils.files import FileError


def caption_groups(config: TrainConfig, data: CaptionedImages) -> list[list[str]]:
    """All training captions, picture by picture, those without a picture last."""
    groups = [data.captions_of(image) for image in range(len(data))]
    return groups + (read_captions(Path(config.more_captions)) if config.more_captions else [])


def build_model(config: TrainConfig, captions: Sequence[str]) -> tuple[VSE, TrainConfig]:
    """A new model with its pretrained parts, and the config with what was read from them."""
    tokenizer: Tokenizer
    if config.model.text == "bert":
        if not config.text_backbone:
            raise ValueError("text = bert needs text_backbone: a folder with a transformers model, or a hub name")
        text_config = TransformerText.read_config(config.text_backbone)
        config = replace(config, model=replace(config.model, text_config=text_config))
        tokenizer = SubwordTokenizer.from_pretrained(config.text_backbone)
    else:
        tokenizer = WordTokenizer.from_captions(captions, config.min_word_count)
    model = VSE(config.model, tokenizer)
    if isinstance(model.text_encoder, TransformerText):
        model.text_encoder.load_weights(config.text_backbone)
        if not config.finetune_text:
            model.text_encoder.freeze_backbone()
    elif config.word_vectors and isinstance(tokenizer, WordTokenizer):
        vectors = read_word_vectors(Path(config.word_vectors), tokenizer.words)
        if not model.text_encoder.load_word_vectors(tokenizer, vectors):
            raise FileError(f"{config.word_vectors} has no vector for any word of the captions")
    if model.image_encoder.backbone is not None:
        if not config.backbone_weights:
            raise ValueError(
                f"backbone_weights is not set: give a .safetensors file for {config.model.backbone}, "
                "a saved model that has it, 'hub' to download ImageNet weights, or 'random' to start from nothing"
            )
        if config.backbone_weights != "random":
            model.image_encoder.backbone.load_weights(config.backbone_weights)
        if not config.finetune_image:
            model.image_encoder.freeze_backbone()
    return model, config
