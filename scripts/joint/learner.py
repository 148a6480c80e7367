"""The two models that learn together, one step at a time, and their running averages."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import vse_demo.layers
import vse_demo.ops.gru
from joint.late_stages import half_linear, late_features
from joint.targets import TEMPERATURE, ensemble_targets, soft_targets, target_loss
from vse_demo import VSE, AdOpt, ModelConfig
from vse_demo.encoders import SubwordTokenizer, WordTokenizer, pad_tokens
from vse_demo.encoders.text import TransformerText, read_word_vectors
from vse_demo.utils.tensors import l2_normalize

MODEL = {
    "dim": 512, "backbone": "tf_efficientnet_lite2", "image_size": 288, "pooling": "adpool",
    "pooling_options": {"variant": "official"},
}  # fmt: skip
NGRAM_BUCKETS = 8192
FROZEN_LAYERS = 2  # of MiniLM, and its word vectors
RATES = {"eyes": 1.5e-4, "minilm": 8e-5, "bigru": 8e-4, "rest": 6e-4}
SOFTNESS = 0.4  # share of the teacher in the targets
WORD_DROPOUT, FEATURES_KEPT = 0.1, 0.5
FINAL = 0.7  # from this part of the run on: AdOpt, and what both models know together
CAPTIONS_ALONE = 0.3  # up to this part of the run the BiGRU also learns from captions without photos


class Learner:
    """MiniLM and a BiGRU, each with its projection and AdPool, over the late stages of one backbone."""

    def __init__(self, pretrained: Path, captions: Iterable[str], frozen_stages: int):
        self.frozen_stages = frozen_stages  # of the backbone, after its stem
        self.minilm, self.bigru = _new_models(pretrained, captions)
        self.models = nn.ModuleDict({"minilm": self.minilm, "bigru": self.bigru})
        backbone = self.minilm.image_encoder.backbone
        assert backbone is not None
        self.backbone, self.net = backbone, backbone.net
        self.late = nn.ModuleList([*self.net.blocks[frozen_stages:], self.net.conv_head, self.net.bn2])
        self.net.requires_grad_(False)
        self.late.requires_grad_(True)
        self.adopt = AdOpt("official")
        self.optimizer = torch.optim.AdamW(self._groups(), betas=(0.9, 0.98))
        self.trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.names = {id(parameter): name for name, parameter in self.models.named_parameters()}
        self.average = {self.names[id(parameter)]: parameter.detach().clone() for parameter in self.trained}
        self.steps = 0
        self.train()

    def load(self, folder: Path) -> None:
        """Take the weights of models that were trained before, `folder`/minilm and `folder`/bigru."""
        frozen = self.net.blocks[: self.frozen_stages]
        before = {name: value.clone() for name, value in frozen.state_dict().items()}
        for name, model in self.models.items():
            stored = VSE.from_pretrained(folder / name)
            if vars(stored.tokenizer).get("words") != vars(model.tokenizer).get("words"):
                raise SystemExit(f"{folder / name} knows other words: it is no model of these captions")
            model.load_state_dict(stored.state_dict())
        # The maps are those of the stages as ImageNet made them.
        if not all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items()):
            raise SystemExit(f"in {folder} some of the first {self.frozen_stages} stages have learned: freeze fewer")
        self.average = {self.names[id(parameter)]: parameter.detach().clone() for parameter in self.trained}

    def train(self) -> None:
        """Training mode, but for the backbone's batch norms."""
        self.models.train()
        self.net.eval()

    def _groups(self) -> list[dict]:
        """Parameters by learning rate; vectors are not decayed."""
        parts = {
            "eyes": self.late.parameters(),
            "minilm": self.minilm.text_encoder.backbone.parameters(),
            "bigru": self.bigru.text_encoder.parameters(),
            "rest": self.models.parameters(),
        }
        taken: set[int] = set()
        groups = []
        for part, parameters in parts.items():
            mine = [each for each in parameters if each.requires_grad and id(each) not in taken]
            taken |= {id(each) for each in mine}
            decay = 0.005 if part == "bigru" else 0.02
            groups.append({"params": [p for p in mine if p.dim() > 1], "rate": RATES[part], "weight_decay": decay})
            groups.append({"params": [p for p in mine if p.dim() < 2], "rate": RATES[part], "weight_decay": 0.0})
        return groups

    def step(self, batch: "Batch", progress: float, random: np.random.Generator) -> dict[str, float]:
        """Learn from one batch; `progress` is the part of the run that is over."""
        rate = min(1, (self.steps + 1) / 100) * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * rate
        with half_products():
            losses, row = self.losses(batch, progress, random)
            self.optimizer.zero_grad(set_to_none=True)
            torch.stack(list(losses.values())).sum().backward()
        nn.utils.clip_grad_norm_(self.trained, 5.0)
        self.optimizer.step()
        self.steps += 1
        self._update_average()
        return {"step": self.steps, "lr": RATES["rest"] * rate, **{k: v.item() for k, v in losses.items()}, **row}

    def losses(
        self, batch: "Batch", progress: float, random: np.random.Generator
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The loss of each model, and what the log keeps of their spaces."""
        features = late_features(self.net, self.frozen_stages, batch.maps)
        similarities = {name: self._similarities(model, features, batch, random) for name, model in self.models.items()}
        targets = soft_targets(batch.teacher, batch.image_ids, len(features), SOFTNESS)
        together = ensemble_targets(list(similarities.values()))
        losses, row = {}, {}
        for name, each in similarities.items():
            terms = self.adopt.from_similarities(each, batch.image_ids)
            losses[name] = target_loss(each, *targets)
            if progress > FINAL:
                losses[name] = (losses[name] + terms.loss) / 2 + target_loss(each, *together)
            k = terms.k if progress > FINAL else len(features) - 1
            row |= {f"{name}_alignment": float(terms.alignment), f"{name}_uniformity": float(terms.uniformity)}
            row |= {f"{name}_k": k, f"{name}_k_authors": terms.k}
        if progress < CAPTIONS_ALONE:
            ours, others = (self.encode_texts(self.bigru, side, random) for side in batch.caption_pairs)
            scores, diagonal = ours @ others.T / TEMPERATURE, torch.arange(len(ours))
            both_ways = F.cross_entropy(scores, diagonal) + F.cross_entropy(scores.T, diagonal)
            losses["captions"] = 0.3 * both_ways / 2
        return losses, row

    def _similarities(self, model: VSE, features: Tensor, batch: "Batch", random: np.random.Generator) -> Tensor:
        images, count, channels = features.shape
        kept = torch.rand(images, count).argsort(1)[:, : max(9, round(count * FEATURES_KEPT))]
        chosen = features.gather(1, kept.unsqueeze(-1).expand(-1, -1, channels))
        return self.encode_texts(model, batch.captions, random) @ model.embed_image_features(chosen).T

    def encode_texts(self, model: VSE, sentences: list[str], random: np.random.Generator | None = None) -> Tensor:
        """Unit vectors (C, D); with a generator some words are left out or masked."""
        tokenizer = model.tokenizer
        encoded = tokenizer.encode(sentences)
        if random is not None:
            encoded = [_drop_words(sentence, tokenizer.special, tokenizer.mask_token, random) for sentence in encoded]
        tokens, mask = pad_tokens(encoded)
        if isinstance(model.text_encoder, TransformerText):
            with torch.autocast("cpu", torch.bfloat16):
                states = model.text_encoder.states(tokens, mask)
            features = model.text_encoder.projection(states.float(), mask)
        else:
            features = model.text_encoder(tokens, mask)
        return l2_normalize(model.text_pooling(features, mask))

    @torch.no_grad()
    def _update_average(self) -> None:
        decay = min(0.997, (1 + self.steps) / (20 + self.steps))
        averages = [self.average[self.names[id(parameter)]] for parameter in self.trained]
        torch._foreach_lerp_(averages, [parameter.detach() for parameter in self.trained], 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the models have their averaged weights and are in evaluation mode."""
        live = [parameter.detach().clone() for parameter in self.trained]
        with torch.no_grad():
            for parameter in self.trained:
                parameter.copy_(self.average[self.names[id(parameter)]])
        self.models.eval()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.trained, live, strict=True):
                    parameter.copy_(value)
            self.train()


class Batch:
    """Maps and captions of one step. Half of the maps are those of mirror images; one caption in five has a typo."""

    def __init__(self, maps: Tensor, captions: list[str], image_ids: Tensor, teacher: Tensor, pairs: list[list[str]]):
        self.maps, self.captions, self.image_ids, self.teacher = maps, captions, image_ids, teacher
        self.caption_pairs = pairs  # two captions of each of some photos that are not here


@contextmanager
def half_products() -> Iterator[None]:
    """Inside, projections and GRUs multiply in bfloat16, which is several times as fast and only used in training."""
    forward, linear = vse_demo.layers.RowLinear.forward, vse_demo.ops.gru.linear
    vse_demo.layers.RowLinear.forward = lambda self, rows: half_linear(rows, self.weight, self.bias)  # type: ignore[method-assign]
    vse_demo.ops.gru.linear = half_linear
    try:
        yield
    finally:
        vse_demo.layers.RowLinear.forward, vse_demo.ops.gru.linear = forward, linear  # type: ignore[method-assign]


def _new_models(pretrained: Path, captions: Iterable[str]) -> tuple[VSE, VSE]:
    """Both models with their pretrained parts, sharing one backbone; what stays frozen is frozen."""
    folder = str(pretrained / "minilm")
    config = ModelConfig(**MODEL, text="bert", text_config=TransformerText.read_config(folder))
    minilm = VSE(config, SubwordTokenizer.from_pretrained(folder))
    minilm.text_encoder.load_weights(folder)
    words = WordTokenizer.from_captions(captions, min_count=4, ngram_buckets=NGRAM_BUCKETS)
    bigru = VSE(ModelConfig(**MODEL, text="bigru", ngram_buckets=NGRAM_BUCKETS), words)
    bigru.text_encoder.load_word_vectors(words, read_word_vectors(pretrained / "word_vectors.safetensors", words.words))
    net = minilm.image_encoder.backbone.net
    state = load_file(pretrained / f"{MODEL['backbone']}.safetensors")
    net.load_state_dict({k: v.half().float() if v.dim() > 1 else v for k, v in state.items() if k in net.state_dict()})
    bigru.image_encoder.backbone = minilm.image_encoder.backbone
    bert = minilm.text_encoder.backbone
    bert.requires_grad_(False)
    for layer in bert.encoder.layer[FROZEN_LAYERS:]:
        layer.requires_grad_(True)
    for module in bert.modules():
        if isinstance(module, nn.Dropout):  # words are dropped instead, which is cheaper
            module.p = 0.0
    return minilm, bigru


def _drop_words(sentence: list, special: frozenset, mask: object, random: np.random.Generator) -> list:
    """Leave out or mask some words; of a masked word with n-grams its inside stays."""
    kept = []
    for token, fate in zip(sentence, random.random(len(sentence)), strict=True):
        if token in special or fate >= WORD_DROPOUT:
            kept.append(token)
        elif fate < WORD_DROPOUT / 2:
            kept.append((WordTokenizer.unknown, *token[1:]) if isinstance(token, tuple) else mask)
    return kept if any(token not in special for token in kept) else sentence
