"""Steps of training on data made from a seed: what one process and several must compute alike.

As a program, `torchrun … tests/distributed_worker.py OUT`, each process takes its share, and the first one writes what
came out; `test_distributed.py` calls the same functions in one process.
"""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from support import wait_until
from torch import Tensor

from vse_demo.encoders.feature_cache import CachedFeatures
from vse_demo.encoders.tokenizers import WordTokenizer
from vse_demo.model import VSE
from vse_demo.training import PairDataset, Trainer, World, join_world, load_steps, make_config

STEPS, TEXTS, DTYPES = 42, ("bigru", "ngrams", "bert"), (torch.float32, torch.float64)
WORDS = [f"word{number}" for number in range(30)]
BERT = {
    "model_type": "bert", "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
NO_EFFECT = ("hidden.bias", "norm.running_mean", "key.bias")  # a batch norm or a softmax follows: true gradients are 0


def make_trainer(text: str, world: World, chunk: int = 0) -> Trainer:
    settings = {
        "dim": 16, "vision": "region", "region_dim": 12, "word_dim": 8, "finetune_text": True,
        "text": "bert" if text == "bert" else "bigru", "ngram_buckets": 50 if text == "ngrams" else 0,
        "batch_size": 7, "captions_per_image": 3, "feature_dropout": 0.3, "word_dropout": 0.3, "learning_rate": 1e-3,
    }  # fmt: skip
    config = make_config("vse+2ad", settings)
    if text == "bert":
        config = replace(config, model=replace(config.model, text_config=BERT))
    torch.manual_seed(0)
    model = VSE(config.model, WordTokenizer(WORDS, config.model.ngram_buckets))
    return Trainer(model, config, chunk=chunk, world=world)


def make_pairs(tokenizer: WordTokenizer) -> PairDataset:
    """40 images of 6 regions with one to four captions of one to nine words."""
    random = np.random.default_rng(0)
    image_ids = np.repeat(np.arange(40), random.integers(1, 5, 40))
    sentences = tokenizer.encode([" ".join(random.choice(WORDS, random.integers(1, 10))) for _ in image_ids])
    regions = random.normal(size=(40, 6, 12)).astype(np.float32)
    return PairDataset(CachedFeatures(regions, np.arange(40)), sentences, image_ids)


def gradients(text: str, world: World, chunk: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Of one ragged batch."""
    trainer = make_trainer(text, world, chunk)
    model = trainer.model.to(dtype)
    pairs = make_pairs(model.tokenizer)
    (inputs,) = next(load_steps(trainer.remaining_steps(pairs, 0, 0)))
    trainer.backward(inputs._replace(features=inputs.features.to(dtype)), 0, 1)
    world.sum_gradients(model.parameters())
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def steps(text: str, world: World, dtype: torch.dtype, chunk: int = 0) -> dict[str, Tensor]:
    """The weights after some steps of AdamW, and the loss and K of each step."""
    trainer, rows = make_trainer(text, world, chunk), []
    pairs = make_pairs(trainer.model.tokenizer)
    trainer.model.to(dtype)
    while trainer.step < STEPS:
        for (inputs,) in load_steps(trainer.remaining_steps(pairs, trainer.step, 0)):
            rows.append(trainer.train_step([inputs._replace(features=inputs.features.to(dtype))], 0, 1e-3))
    log = {name: torch.tensor([row[name] for row in rows]) for name in ("loss", "k")}
    return log | dict(trainer.model.state_dict())


def main(out: Path) -> None:
    results: dict[str, Tensor] = {}
    with join_world("cpu") as world:
        for text in TEXTS:
            results |= {f"{text}/gradient/{name}": tensor for name, tensor in gradients(text, world).items()}
            results |= {f"{text}/chunked/{name}": tensor for name, tensor in gradients(text, world, chunk=2).items()}
            single = gradients(text, world, dtype=torch.float32)
            results |= {f"{text}/single/{name}": tensor for name, tensor in single.items()}
            for dtype in DTYPES:
                results |= {f"{text}/{dtype}/{name}": tensor for name, tensor in steps(text, world, dtype).items()}
        if world.leads:
            save_file(results, out)
    wait_until(lambda: not any("gloo" in name for name in threads()), 30)  # one left could abort the process at its end


def threads() -> Iterator[str]:
    """Names of the threads of this process."""
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            yield path.read_text().strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
