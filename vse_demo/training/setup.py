"""A new model with its pretrained parts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from vse_demo.data.layouts import CaptionedImages, read_captions
from vse_demo.encoders.backbone import Backbone
from vse_demo.encoders.characters import CharacterTokenizer
from vse_demo.encoders.text import BiGRU, TransformerText, read_word_vectors
from vse_demo.encoders.tokenizers import SubwordTokenizer, Tokenizer, WordTokenizer
from vse_demo.model.dual import DualEncoder
from vse_demo.model.interaction import InteractionModel, new_model
from vse_demo.model.names import shipped_folder
from vse_demo.model.storage import with_backbone_of
from vse_demo.training.config import TrainConfig
from vse_demo.utils.files import FileError
from vse_demo.utils.tensors import round_to_half


def caption_groups(config: TrainConfig, data: CaptionedImages) -> list[list[str]]:
    """All training captions, image by image, those without an image last."""
    groups = [data.captions_of(image) for image in range(len(data))]
    return groups + (read_captions(Path(config.more_captions)) if config.more_captions else [])


def build_model(config: TrainConfig, captions: Sequence[str]) -> tuple[DualEncoder, TrainConfig]:
    """A new model with its pretrained parts.

    Args:
        config: the recipe.
        captions: that the vocabulary of a BiGRU is made from.

    Returns:
        The model, and the config with what was read from the pretrained parts.

    Raises:
        ValueError: if a setting is missing or unknown.
        FileError: if a pretrained part cannot be read or does not fit.
    """
    weights = shipped_folder(config.backbone_weights)
    if weights and Path(weights).is_dir() and config.model.vision != "region":
        config = replace(config, model=with_backbone_of(config.model, weights))
    model, config = _new_model(config, captions)
    _load_text(model, config)
    _show_captions(model, captions)
    _load_backbone(model, config)
    return model, config


def _new_model(config: TrainConfig, captions: Sequence[str]) -> tuple[DualEncoder, TrainConfig]:
    tokenizer: Tokenizer
    if config.model.text == "bert":
        if not config.text_backbone:
            raise ValueError("text = bert needs text_backbone: a folder with a transformers model, or a hub name")
        text_config = TransformerText.read_config(config.text_backbone)
        config = replace(config, model=replace(config.model, text_config=text_config))
        tokenizer = SubwordTokenizer.from_pretrained(config.text_backbone)
    elif config.model.text == "liwe":
        if config.word_vectors:
            raise ValueError("text = liwe makes words of letters: there are no word_vectors to start from")
        tokenizer = CharacterTokenizer()
    else:
        tokenizer = WordTokenizer.from_captions(captions, config.min_word_count, config.model.ngram_buckets)
    model = new_model(config.model, tokenizer)
    return model, replace(config, model=model.config)


def _load_text(model: DualEncoder, config: TrainConfig) -> None:
    if isinstance(model.text_encoder, TransformerText):
        model.text_encoder.load_weights(config.text_backbone)
        if not config.finetune_text:
            model.text_encoder.freeze_backbone()
    elif config.word_vectors and isinstance(model.text_encoder, BiGRU) and isinstance(model.tokenizer, WordTokenizer):
        vectors = read_word_vectors(Path(config.word_vectors), model.tokenizer.words)
        if not model.text_encoder.load_word_vectors(model.tokenizer, vectors):
            raise FileError(f"{config.word_vectors} has no vector for any word of the captions")


def _show_captions(model: DualEncoder, captions: Sequence[str]) -> None:
    """Let an interaction that learns from the words of all captions see them."""
    if isinstance(model, InteractionModel) and model.interaction.needs_words:
        text, tokenizer = model.text_encoder, model.tokenizer
        if not isinstance(text, BiGRU) or not isinstance(tokenizer, WordTokenizer):
            name = model.config.interaction
            raise ValueError(f"{name} takes its concepts from the words of a bigru, not of {model.config.text}")
        vectors = text.embedding.weight.detach()[2:]  # after padding and the unknown word
        model.interaction.prepare([tokenizer.split(caption) for caption in captions], tokenizer.words, vectors)


def _load_backbone(model: DualEncoder, config: TrainConfig) -> None:
    backbone = model.image_encoder.backbone
    if backbone is None:
        return
    if not config.backbone_weights:
        raise ValueError(
            f"backbone_weights is not set: give a .safetensors file for {config.model.backbone}, "
            "a saved model that has it, 'hub' to download ImageNet weights, or 'random' to start from nothing"
        )
    if config.backbone_weights != "random":
        backbone.load_weights(shipped_folder(config.backbone_weights))
    if not config.finetune_image:
        model.image_encoder.freeze_backbone()
    elif config.frozen_stages:
        round_to_half(nn.ParameterList(first_stages(backbone, config.frozen_stages)))


def first_stages(backbone: Backbone, count: int) -> list[nn.Parameter]:
    """The parameters of the first stages of a backbone, as timm groups them: the stem, then stage by stage.

    Raises:
        ValueError: if the backbone has no more stages than that, or timm does not group them.
    """
    from timm.models import group_parameters

    if not hasattr(backbone.net, "group_matcher"):
        raise ValueError(f"timm does not say what the stages of {backbone.name} are: frozen_stages must be 0")
    stage_of = group_parameters(backbone.net, backbone.net.group_matcher(coarse=True), reverse=True)
    stages = len(set(stage_of.values()))
    if count >= stages:
        raise ValueError(f"{backbone.name} has {stages} stages, frozen_stages must be below that, not {count}")
    return [parameter for name, parameter in backbone.net.named_parameters() if stage_of[name] < count]
