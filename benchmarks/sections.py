"""What is measured, a function per section; the slow sides are written the way one would at first."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import Row, Work, compare, milliseconds, without_kernels
from vse_demo import ops
from vse_demo.data import open_dataset
from vse_demo.encoders import WordTokenizer
from vse_demo.evaluation import retrieval_ranks
from vse_demo.losses import AdOpt
from vse_demo.model import VSE, ModelConfig, load_model
from vse_demo.pooling import AdPool, build_pooling, masked_softmax, softmax_sum, sort_with_order, weighted_sum
from vse_demo.retrieval import top_k
from vse_demo.utils.checks import VARIANTS


def pooling() -> Iterator[Row]:
    """AdPool against plain PyTorch and against torch's own maximum."""
    for shape, ragged in (((128, 36, 1024), False), ((128, 81, 1024), False), ((640, 14, 1024), True)):
        yield from pooling_rows(shape, ragged)
        features, mask = _sets(shape, ragged)
        what = f"{_called('paper', shape, ragged)}, forward"
        forward = _inference(AdPool(shape[2], "paper"), features, mask)
        yield compare(what, "torch.max(dim=1)", "≥ 0.5", forward, lambda x=features: x.max(dim=1))  # type: ignore[misc]
    yield from pooling_rows((128, 36, 1024), False, "official")


def pooling_rows(shape: tuple[int, int, int], ragged: bool, variant: str = "paper") -> Iterator[Row]:
    """AdPool of one shape, with a mask or without, against plain PyTorch."""
    pool, (features, mask), name = AdPool(shape[2], variant), _sets(shape, ragged), _called(variant, shape, ragged)
    aims = ("≥ 10", "≥ 6") if variant == "paper" else ("≥ 3", "≥ 2.5")
    forward, backward = _inference(pool, features, mask), _with_gradients(pool, features, mask)
    yield compare(f"{name}, forward", "plain PyTorch", aims[0], forward, without_kernels(forward))
    yield compare(f"{name}, forward + backward", "plain PyTorch", aims[1], backward, without_kernels(backward))


def batch_row() -> Row:
    """Pictures in a batch of 32 against the same ones each by itself: the batch must not be slower."""
    photos, model = open_dataset().split("test").images[:32], load_model("grid-minilm")
    return compare(
        f"encode 32 pictures, {model.config.image_size} px, grid-minilm", "one at a time", "≥ 1",
        lambda: model.encode_images(photos), lambda: model.encode_images(photos, batch_size=1), rounds=5,
    )  # fmt: skip


def order() -> Iterator[Row]:
    """AdPool and batches of pictures in processes of three kinds: memory kept or not, PyTorch imported first or not."""
    for when, name in (("never", "not tuned"), ("after", "tuned after PyTorch"), ("before", "tuned before PyTorch")):
        command = [sys.executable, "-m", "benchmarks.order", when]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for row in json.loads(printed):
            yield Row(**{**row, "what": f"{row['what']}, {name}"})


def aggregators() -> Iterator[Row]:
    """The paper's table of aggregators: items per second, GCN = 1."""
    features = torch.randn(128, 36, 1024)
    slowest = _inference(build_pooling("gcn", 1024).eval(), features, None)
    for name in ("lip", "seq2seq", "selfattn", "adapool", "softpool", "gpo", "manual", "mean", "max", "adpool"):
        pool = _inference(build_pooling(name, 1024).eval(), features, None)
        yield compare(f"{name} (128, 36, 1024), forward", "GCN", "", pool, slowest, rounds=5)
    paper = _inference(build_pooling("adpool", 1024, variant="paper").eval(), features, None)
    what = "adpool, variant paper (128, 36, 1024), forward"
    yield compare(what, "GCN", "fastest but mean, max", paper, slowest, rounds=5)


def objective() -> Iterator[Row]:
    """AdOpt on a matrix of similarities against gathering the vectors of all negatives."""

    def step(loss: Callable[[Tensor, Tensor], Tensor], size: int) -> Work:
        pairs = nn.functional.normalize(torch.randn(2, size, 1024), dim=2).requires_grad_()
        return lambda: loss(*pairs).backward()

    adopt = AdOpt("official")
    matrix = {
        size: step(lambda images, texts: adopt(images, texts, torch.arange(len(images))).loss, size)
        for size in (256, 1024)
    }
    gathered = step(loss_by_gathering, 256)  # at 1,024 its vectors would take 8 GB
    yield compare("AdOpt, B = 256, d = 1024", "gathering B × B × D", "≥ 10", matrix[256], gathered, 5)
    yield compare("AdOpt, B = 1024, d = 1024", "gathering at B = 256", "", matrix[1024], gathered, 5)


def loss_by_gathering(images: Tensor, texts: Tensor, temperature: float = 0.05) -> Tensor:
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
    image_ids = torch.arange(5_000).repeat_interleave(5)

    def loop() -> None:
        matrix, right = similarities.numpy(), image_ids.numpy()
        for image in range(5_000):
            np.flatnonzero(right[np.argsort(-matrix[:, image])] == image)[0]
        for text in range(25_000):
            np.flatnonzero(np.argsort(-matrix[text]) == right[text])[0]

    yield compare(
        "recall of 5,000 × 25,000, both ways", "a loop with argsort", "≥ 50",
        lambda: retrieval_ranks(similarities, image_ids), loop, rounds=5,
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
    """A caption, an image and a whole query by a shipped model, against CLIP ViT-B/32 and ALIGN.

    Their weights are random, which does not matter for time. An image goes through the shipped backbone, and through
    the one that a model has by default (Lite0 at 224 px).
    """
    from transformers import AlignConfig, AlignModel, CLIPConfig, CLIPModel

    from vse_demo.shipped import gallery_photo, load_shipped

    gallery = load_shipped()
    photo, sentence = gallery_photo(gallery.names[0]), gallery.captions[0]
    small = VSE(ModelConfig(), WordTokenizer([])).eval()
    tokens = torch.randint(5, 1000, (1, len(sentence.split()) + 2))
    many = nn.functional.normalize(torch.randn(31_014, gallery.model.dim), dim=1)  # as many images as Flickr30K has
    for name, model, size in (
        ("CLIP ViT-B/32", CLIPModel(CLIPConfig()).eval(), 224),
        ("ALIGN", AlignModel(AlignConfig()).eval(), 289),
    ):
        pixels = torch.randn(1, 3, size, size)

        @torch.inference_mode()
        def their_text(model: Any = model) -> Tensor:
            found = model.get_text_features(input_ids=tokens, attention_mask=torch.ones_like(tokens))
            return found if isinstance(found, Tensor) else found.pooler_output

        @torch.inference_mode()
        def their_image(model: Any = model, pixels: Tensor = pixels) -> None:
            model.get_image_features(pixel_values=pixels)

        theirs = nn.functional.normalize(torch.randn(len(many), their_text().shape[1]), dim=1)

        def their_query(encode: Callable[[], Tensor] = their_text, vectors: Tensor = theirs) -> None:
            top_k(encode(), vectors, 5)

        for ours, called in _shipped_models():
            yield compare(
                f"encode one caption, {called}", name, "≥ 10",
                lambda m=ours: m.encode_texts([sentence]), their_text,  # type: ignore[misc]
            )  # fmt: skip
            yield compare(
                f"encode one picture, {ours.config.image_size} px, {called}", name, "≥ 5",
                lambda m=ours: m.encode_images([photo]), their_image,  # type: ignore[misc]
            )  # fmt: skip
            yield compare(
                f"a sentence to its top-5 of 31,014 pictures, {called}", name, "≥ 10",
                lambda m=ours: top_k(m.encode_texts([sentence]), many, 5), their_query,  # type: ignore[misc]
            )  # fmt: skip
        yield compare("encode one picture, 224 px", name, "≥ 5", lambda: small.encode_images([photo]), their_image)


def _shipped_models() -> Iterator[tuple[Any, str]]:
    """The models that come along, by PyTorch and by ONNX Runtime, and what the table calls them."""
    for name in ("grid-minilm", "grid-bigru"):
        yield load_model(name), name
        yield load_model(name, backend="onnx"), f"{name}, ONNX Runtime"


def training() -> Iterator[Row]:
    """A step on cached features against plain PyTorch: `torch.sort`, `nn.Linear`, `nn.GRU` on packed captions."""
    from vse_demo.encoders import CachedFeatures
    from vse_demo.training import Batch, PairDataset, Trainer, make_config

    random = np.random.default_rng(0)
    words = [f"word{number}" for number in range(8_000)]
    features = CachedFeatures(random.normal(size=(128, 81, 1280)).astype(np.float16), np.arange(128))
    sentences = [random.integers(2, 8_000, random.integers(8, 18)).tolist() for _ in range(128)]
    pairs = PairDataset(features, sentences, np.arange(128))
    batch = Batch(list(range(128)), list(range(128)), torch.arange(128))
    for variant in VARIANTS:
        steps = {}
        for precision in ("fp32", "bf16"):
            overrides = {"vision": "region", "region_dim": 1280, "pooling_options": {"variant": variant}}
            config = make_config("vse+2ad", {**overrides, "precision": precision})
            trainer = Trainer(VSE(config.model, WordTokenizer(words)), config)

            def step(trainer: Trainer = trainer) -> None:
                trainer.train_step([trainer.inputs.make(pairs, batch, trainer.step)], 0, rate=1e-4)

            steps[precision] = step
        what = f"a training step, 128 pictures of 81 cells, d = 1024, {variant} AdPool"
        plain = without_kernels(steps["fp32"])
        yield compare(what, "plain PyTorch", "≥ 3", steps["fp32"], plain, rounds=5)
        yield compare(f"{what}, bf16", "plain PyTorch, fp32", "≥ 3", steps["bf16"], plain, rounds=5)
        half = without_kernels(steps["bf16"])
        yield compare(f"{what}, bf16", "plain PyTorch, bf16", "", steps["bf16"], half, rounds=5)


def start() -> Iterator[Row]:
    """From the command to the first answer of a search and of the app, against importing what they need."""
    app = Path(__file__).parent.parent / "app.py"
    if not app.exists():
        raise ValueError("the start section runs app.py, which is in a checkout and not in the package")

    def imports(modules: str = "torch, gradio") -> None:
        subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)

    def find() -> None:
        command = [sys.executable, "-m", "vse_demo", "search", "a dog on the beach"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    yield compare("vse-demo search", "importing torch", "≥ 0.5", find, lambda: imports("torch"), 5)

    yield compare(
        "the app's first answer", "importing torch and gradio", "≥ 0.4", lambda: _first_answer(app), imports, 3
    )


def _first_answer(app: Path) -> None:
    """Start the app, ask it for images, wait for them, and stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/gradio_api/call/find_images"
    question = json.dumps({"data": ["a dog on the beach", "grid-minilm"]}).encode()
    server = subprocess.Popen([sys.executable, str(app), "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                asked = urllib.request.Request(address, question, {"Content-Type": "application/json"})
                event = json.load(urllib.request.urlopen(asked))["event_id"]
                break
            except urllib.error.URLError:  # not up yet
                time.sleep(0.05)
        answer = urllib.request.urlopen(f"{address}/{event}").read().decode()
        assert "event: complete" in answer, answer
    finally:
        server.kill()
        server.wait()


def time_parts() -> dict[str, dict[str, float]]:
    """Where the time of AdPool goes, (128, 36, 1024) forward, in milliseconds; beside it, simpler poolings."""
    features, mask = torch.randn(128, 36, 1024), torch.ones(128, 36, dtype=torch.bool)
    pool = AdPool(1024, "paper")
    values, _ = sort_with_order(features, mask)
    steps: dict[str, Work] = {
        "sort": lambda: sort_with_order(features, mask),
        "token level": lambda: weighted_sum(masked_softmax(pool.token_scores(values), mask), values),
        "embedding level": lambda: softmax_sum(features, features, mask),
        "balance": lambda: pool.balance(features[:, 0], features[:, 1]),
    }
    with torch.no_grad(), ops.disable_kernels():
        plain = {name: milliseconds(work) for name, work in steps.items()}
    with torch.no_grad():
        return {
            "AdPool, plain PyTorch": plain,
            "AdPool, compiled": {"all in one pass": milliseconds(lambda: pool(features, mask))},
            "torch.max": {"pooling": milliseconds(lambda: features.max(dim=1))},
            "torch.mean": {"pooling": milliseconds(lambda: features.mean(dim=1))},
        }


def _called(variant: str, shape: tuple[int, int, int], ragged: bool) -> str:
    return f"AdPool {variant} {shape}" + (" ragged" if ragged else "")


def _sets(shape: tuple[int, int, int], ragged: bool) -> tuple[Tensor, Tensor | None]:
    """Features, and for ragged sets a mask: half of the rows to all of them are real."""
    items, rows, _ = shape
    lengths = torch.randint(rows // 2, rows + 1, (items, 1))
    return torch.randn(shape), torch.arange(rows) < lengths if ragged else None


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


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "pooling": pooling,
    "aggregators": aggregators,
    "order": order,
    "objective": objective,
    "recall": recall,
    "search": search,
    "encoding": encoding,
    "training": training,
    "start": start,
}
