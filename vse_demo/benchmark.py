"""How fast? Every claim against its alternative, in one process on one machine, as a ratio.

Both sides run in turn, round by round, so that whatever else the machine does hits both. A row holds
the median of the rounds' ratios and their quartiles. What is measured is in the functions below, one
per section; the slow sides are written the way one would at first.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vse_demo import kernels
from vse_demo.aggregators import build_pooling
from vse_demo.evaluation import retrieval_ranks
from vse_demo.model import VSE, ModelConfig
from vse_demo.objectives import AdOpt
from vse_demo.pooling import AdPool
from vse_demo.retrieval import top_k
from vse_demo.text import WordTokenizer

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One comparison; `ratio` is how many times faster the first side is."""

    what: str
    against: str
    aim: str
    ratio: float
    low: float  # quartiles of the rounds
    high: float
    milliseconds: float  # of the first side


def compare(what: str, against: str, aim: str, ours: Work, theirs: Work, rounds: int = 9) -> Row:
    """Time both sides in turn, after one round to warm up."""
    ours(), theirs()
    mine, ratios = [], []
    for _ in range(rounds):
        a, b = _seconds(ours), _seconds(theirs)
        mine.append(a)
        ratios.append(b / a)
    low, _, high = statistics.quantiles(ratios, n=4) if rounds > 1 else [ratios[0]] * 3
    return Row(what, against, aim, statistics.median(ratios), low, high, 1000 * statistics.median(mine))


def run_benchmark(sections: list[str]) -> Iterator[Row]:
    """The rows of the chosen sections, as they are measured; all sections if none is chosen."""
    for name in sections or list(SECTIONS):
        if name not in SECTIONS:
            raise ValueError(f"unknown section {name!r}; choose from {', '.join(SECTIONS)}")
        torch.manual_seed(0)
        yield from SECTIONS[name]()


def machine() -> str:
    """What was measured on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = "CPU"
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"


def pooling() -> Iterator[Row]:
    """AdPool against plain PyTorch and against torch's own maximum."""
    shapes = [(128, 36, 1024), (128, 81, 1024), (640, 14, 1024)]
    for shape in shapes:
        features, mask = _ragged(*shape) if shape[1] == 14 else (torch.randn(shape), None)
        pool, name = AdPool(shape[2]), f"AdPool {shape}" + (" ragged" if mask is not None else "")
        forward = _inference(pool, features, mask)
        backward = _with_gradients(pool, features, mask)
        yield compare(f"{name}, forward", "plain PyTorch", "≥ 10", forward, _plainly(forward))
        yield compare(f"{name}, forward + backward", "plain PyTorch", "≥ 6", backward, _plainly(backward))
        yield compare(f"{name}, forward", "torch.max(dim=1)", "≥ 0.5", forward, lambda x=features: x.max(dim=1))  # type: ignore[misc]
    features, pool = torch.randn(shapes[0]), AdPool(1024, "official")
    forward, backward = _inference(pool, features, None), _with_gradients(pool, features, None)
    yield compare(f"AdPool official {shapes[0]}, forward", "plain PyTorch", "≥ 3", forward, _plainly(forward))
    yield compare(
        f"AdPool official {shapes[0]}, forward + backward", "plain PyTorch", "≥ 2.5", backward, _plainly(backward)
    )


def aggregators() -> Iterator[Row]:
    """The paper's table of aggregators: items per second, GCN = 1."""
    features = torch.randn(128, 36, 1024)
    slowest = _inference(build_pooling("gcn", 1024).eval(), features, None)
    for name in ("lip", "seq2seq", "selfattn", "adapool", "softpool", "gpo", "manual", "mean", "max", "adpool"):
        aim = "the fastest but for mean and max" if name == "adpool" else ""
        pool = _inference(build_pooling(name, 1024).eval(), features, None)
        yield compare(f"{name} (128, 36, 1024), forward", "GCN", aim, pool, slowest, rounds=5)


def objective() -> Iterator[Row]:
    """AdOpt on a matrix of similarities against gathering the vectors of all negatives."""

    def step(loss: Callable[[Tensor, Tensor], Tensor], size: int) -> Work:
        pairs = nn.functional.normalize(torch.randn(2, size, 1024), dim=2).requires_grad_()
        return lambda: loss(*pairs).backward()

    adopt = AdOpt("official")
    matrix = {
        size: step(lambda images, texts: adopt(images, texts, torch.arange(len(images))), size) for size in (256, 1024)
    }
    gathered = step(_loss_by_gathering, 256)  # at 1,024 its vectors would take 8 GB
    yield compare("AdOpt, B = 256, d = 1024", "gathering B × B × D", "≥ 10", matrix[256], gathered, 5)
    yield compare("AdOpt, B = 1024, d = 1024", "gathering at B = 256", "", matrix[1024], gathered, 5)


def _loss_by_gathering(images: Tensor, texts: Tensor, temperature: float = 0.05) -> Tensor:
    """InfoNCE over all negatives, each row with its own copies of the negatives' vectors (B, B − 1, D)."""
    size = len(images)
    others = torch.stack([torch.cat([torch.arange(i), torch.arange(i + 1, size)]) for i in range(size)])
    loss = images.new_zeros(())
    for one, other in ((images, texts), (texts, images)):
        right = (one * other).sum(1, keepdim=True)
        wrong = torch.einsum("bd,bnd->bn", one, other[others])
        loss = loss + (torch.cat([right, wrong], 1) / temperature).logsumexp(1).mean() - right.mean() / temperature
    return loss


def recall() -> Iterator[Row]:
    """Ranks of 5,000 images and 25,000 captions against sorting every query's scores."""
    similarities = torch.randn(25_000, 5_000)
    owner = torch.arange(5_000).repeat_interleave(5)

    def loop() -> None:
        matrix, right = similarities.numpy(), owner.numpy()
        for image in range(5_000):
            np.flatnonzero(right[np.argsort(-matrix[:, image])] == image)[0]
        for text in range(25_000):
            np.flatnonzero(np.argsort(-matrix[text]) == right[text])[0]

    yield compare(
        "recall of 5,000 × 25,000, both ways", "a loop with argsort", "≥ 50",
        lambda: retrieval_ranks(similarities, owner), loop, rounds=1,
    )  # fmt: skip


def search() -> Iterator[Row]:
    """Exact top-5 against faiss's flat index."""
    try:
        import faiss
    except ImportError:
        raise ValueError("the search section compares with faiss: pip install faiss-cpu") from None

    faiss.omp_set_num_threads(torch.get_num_threads())
    for count, dim in ((31_014, 1024), (1_000_000, 256)):
        vectors = nn.functional.normalize(torch.randn(count, dim), dim=1)
        index = faiss.IndexFlatIP(dim)
        index.add(vectors.numpy())
        for queries in (1, 64):
            query = nn.functional.normalize(torch.randn(queries, dim), dim=1)
            yield compare(
                f"top-5 of {count:,} × {dim}, {queries} queries", "faiss IndexFlatIP", "≥ 1",
                lambda q=query, v=vectors: top_k(q, v, 5), lambda q=query, i=index: i.search(q.numpy(), 5),  # type: ignore[misc]
            )  # fmt: skip


def encoding() -> Iterator[Row]:
    """One caption, one picture, against CLIP ViT-B/32 and ALIGN of their usual shapes."""
    from PIL import Image
    from transformers import AlignConfig, AlignModel, CLIPConfig, CLIPModel

    words = [f"word{number}" for number in range(8_000)]
    config = ModelConfig(dim=1024, backbone="tf_efficientnet_lite2", image_size=260)
    ours = VSE(config, WordTokenizer(words)).eval()
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (375, 500, 3), dtype=np.uint8))
    sentence = " ".join(words[:12])
    for name, model, size, length in (
        ("CLIP ViT-B/32", CLIPModel(CLIPConfig()).eval(), 224, 14),
        ("ALIGN", AlignModel(AlignConfig()).eval(), 289, 14),
    ):
        pixels, tokens = torch.randn(1, 3, size, size), torch.randint(5, 1000, (1, length))

        @torch.inference_mode()
        def their_text(model: Any = model, tokens: Tensor = tokens) -> None:
            model.get_text_features(input_ids=tokens, attention_mask=torch.ones_like(tokens))

        @torch.inference_mode()
        def their_image(model: Any = model, pixels: Tensor = pixels) -> None:
            model.get_image_features(pixel_values=pixels)

        yield compare("encode one caption", name, "≥ 10", lambda: ours.encode_texts([sentence]), their_text)
        yield compare("encode one picture", name, "≥ 10", lambda: ours.encode_images([picture]), their_image)


def training() -> Iterator[Row]:
    """A step on cached cells with the kernels and without."""
    from vse_demo.batches import Batch, Pairs
    from vse_demo.features import CachedCells
    from vse_demo.presets import make_config
    from vse_demo.training import Trainer

    random = np.random.default_rng(0)
    words = [f"word{number}" for number in range(8_000)]
    cells = CachedCells(random.normal(size=(128, 81, 1280)).astype(np.float16), np.arange(128))
    sentences = [random.integers(2, 8_000, random.integers(8, 18)).tolist() for _ in range(128)]
    pairs = Pairs(cells, sentences, np.arange(128))
    batch = Batch(list(range(128)), list(range(128)), torch.arange(128))
    config = make_config("vse+2ad", {"vision": "region", "region_dim": 1280, "dim": 1024})
    trainer = Trainer(VSE(config.model, WordTokenizer(words)), config)

    def step() -> None:
        trainer.train_step(pairs, batch, 0, rate=1e-4)

    yield compare(
        "a training step, 128 pictures of 81 cells, d = 1024", "plain PyTorch", "≥ 3", step, _plainly(step), 3
    )


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "pooling": pooling,
    "aggregators": aggregators,
    "objective": objective,
    "recall": recall,
    "search": search,
    "encoding": encoding,
    "training": training,
}


def as_table(rows: list[Row]) -> str:
    """Markdown, for the terminal and the README."""
    lines = ["| what | against | times faster (quartiles) | ms | aim |", "|---|---|---|---|---|"]
    for row in rows:
        ratio = f"{row.ratio:.3g} ({row.low:.3g}–{row.high:.3g})"
        lines.append(f"| {row.what} | {row.against} | {ratio} | {row.milliseconds:.3g} | {row.aim} |")
    return "\n".join(lines)


def as_json(rows: list[Row]) -> dict[str, Any]:
    return {"machine": machine(), "rows": [asdict(row) for row in rows]}


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _plainly(work: Work) -> Work:
    def run() -> None:
        with kernels.plain():
            work()

    return run


def _ragged(items: int, rows: int, dim: int) -> tuple[Tensor, Tensor]:
    lengths = torch.randint(rows // 2, rows + 1, (items, 1))
    return torch.randn(items, rows, dim), torch.arange(rows) < lengths


def _inference(pool: nn.Module, features: Tensor, mask: Tensor | None) -> Work:
    @torch.no_grad()
    def run() -> None:
        pool(features, mask)

    return run


def _with_gradients(pool: nn.Module, features: Tensor, mask: Tensor | None) -> Work:
    leaf = features.clone().requires_grad_()

    def run() -> None:
        leaf.grad = None
        pool(leaf, mask).sum().backward()

    return run
