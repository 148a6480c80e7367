"""Late interaction: every formula against plain loops, padding, blocks, training, and models on disk."""

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import ROOT, environment
from torch import Tensor

from vse_demo.cli import main
from vse_demo.encoders import WordTokenizer
from vse_demo.evaluation import evaluate, evaluate_pairs
from vse_demo.interaction import (
    CAAN,
    DIME,
    IMRAM,
    INTERACTIONS,
    SCAN,
    FeatureSets,
    Fusion,
    all_similarities,
    base,
    build_interaction,
)
from vse_demo.interaction.caan import ContextAttention
from vse_demo.interaction.cvse import ConceptScore, GuidedPool, concept_graph
from vse_demo.interaction.dime import RoutedLayer
from vse_demo.interaction.fusion import matching_pairs
from vse_demo.interaction.pvse import PolysemousEmbedding
from vse_demo.losses import build_objective
from vse_demo.model import VSE, InteractionModel, ModelConfig, holds_interaction, load_model
from vse_demo.training import COMPETITORS, TrainConfig, build_model, make_config, train
from vse_demo.utils.files import FileError

DIM = 8
every_interaction = pytest.mark.parametrize("name", INTERACTIONS)


def make_sets(lengths: list[int], seed: int, dim: int = DIM) -> FeatureSets:
    """Random feature sets of these lengths, in double; padding holds nonsense."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(lengths), max(lengths) + 1, dim, generator=generator, dtype=torch.float64)
    mask = torch.arange(max(lengths) + 1) < torch.tensor(lengths).unsqueeze(1)
    return FeatureSets(features.masked_fill(~mask.unsqueeze(-1), 1e4), mask)


def build(name: str, **options: object) -> base.Interaction:
    torch.manual_seed(0)
    return build_interaction(name, DIM, **options).double().eval()


def compare(interaction: base.Interaction, images: FeatureSets, texts: FeatureSets) -> Tensor:
    return interaction(interaction.image_sets(images), interaction.text_sets(texts))


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    return float(left @ right / (np.linalg.norm(left) * np.linalg.norm(right)))


def scan_by_loops(image: np.ndarray, text: np.ndarray, direction: str, pool: str, sharp: float, lse: float) -> float:
    """Equations 1 to 11 of SCAN for one pair, features one by one."""
    queries, contexts = (text, image) if direction == "t2i" else (image, text)
    scores = [[max(0.0, cosine(query, context)) for context in contexts] for query in queries]
    relevance = []
    for place, query in enumerate(queries):
        exponents = []
        for column in range(len(contexts)):
            length = math.sqrt(sum(row[column] ** 2 for row in scores) + 1e-8)
            exponents.append(math.exp(sharp * scores[place][column] / length))
        units = [context / np.linalg.norm(context) for context in contexts]
        attended = sum(weight / sum(exponents) * unit for weight, unit in zip(exponents, units, strict=True))
        relevance.append(cosine(query, attended))
    if pool == "lse":
        return math.log(sum(math.exp(lse * value) for value in relevance)) / lse
    return sum(relevance) / len(relevance)


def by_pairs(images: FeatureSets, texts: FeatureSets, similarity: object) -> np.ndarray:
    """A loop over all pairs of real features."""
    rows = [[similarity(image.numpy(), text.numpy()) for image in doubles(images)] for text in doubles(texts)]  # type: ignore[operator]
    return np.array(rows)


def doubles(sets: FeatureSets) -> list[Tensor]:
    return [rows[mask] for rows, mask in zip(sets.features, sets.mask, strict=True)]


@pytest.mark.parametrize("pool", ["lse", "avg"])
@pytest.mark.parametrize(("direction", "sharp", "lse"), [("t2i", 9.0, 6.0), ("i2t", 4.0, 5.0)])
def test_scan_is_its_paper_in_loops(direction: str, sharp: float, lse: float, pool: str) -> None:
    images, texts = make_sets([3, 5, 1, 4], 0), make_sets([2, 6, 1], 1)
    found = SCAN(direction, pool)(images, texts)
    expected = by_pairs(images, texts, lambda i, t: scan_by_loops(i, t, direction, pool, sharp, lse))
    assert found.shape == (3, 4)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_scan_without_attention_compares_with_the_mean_of_the_other_side() -> None:
    images, texts = make_sets([3, 5], 0), make_sets([2, 6], 1)
    found = SCAN("t2i", "avg", attention=False)(images, texts)

    def plain(image: np.ndarray, text: np.ndarray) -> float:
        mean = np.mean([row / np.linalg.norm(row) for row in image], axis=0)
        return float(np.mean([cosine(word, mean) for word in text]))

    np.testing.assert_allclose(found.numpy(), by_pairs(images, texts, plain), atol=1e-6)


def softmax(values: list[float]) -> list[float]:
    exponents = [math.exp(value - max(values)) for value in values]
    return [exponent / sum(exponents) for exponent in exponents]


def layer_of(module: torch.nn.Linear) -> Callable[[np.ndarray], np.ndarray]:
    """A linear layer as a function of one vector."""
    weight = module.weight.detach().numpy()
    bias = 0.0 if module.bias is None else module.bias.detach().numpy()
    return lambda vector: weight @ vector + bias


def sigmoid(vector: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-vector))


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def attended_by_loops(queries: list[np.ndarray], contexts: list[np.ndarray], sharp: float) -> list[np.ndarray]:
    """SCAN's attention for one pair: what each query feature finds among unit context features."""
    scores = [[max(0.0, float(query @ context)) for context in contexts] for query in queries]
    lengths = [math.sqrt(sum(row[column] ** 2 for row in scores) + 1e-8) for column in range(len(contexts))]
    found = []
    for row in scores:
        weights = softmax([sharp * score / length for score, length in zip(row, lengths, strict=True)])
        found.append(sum(weight * context for weight, context in zip(weights, contexts, strict=True)))
    return found


def imram_by_loops(model: IMRAM, image: np.ndarray, text: np.ndarray) -> float:
    total = 0.0
    for branch in model.branches:
        first, contexts = (
            [unit(row) for row in side] for side in ((text, image) if branch == "t2i" else (image, text))
        )
        memory = first
        for _ in range(model.steps):
            found = attended_by_loops(memory, contexts, 9.0)
            total += sum(cosine(query, each) for query, each in zip(first, found, strict=True)) / len(first)
            if model.steps > 1:
                unit_of = model.memory[branch]
                gate, candidate = layer_of(unit_of.gate), layer_of(unit_of.candidate)
                updated = []
                for query, each in zip(memory, found, strict=True):
                    both = np.concatenate([query, each])
                    kept = sigmoid(gate(both))
                    updated.append(unit(kept * query + (1 - kept) * np.tanh(candidate(both))))
                memory = updated
    return total


@pytest.mark.parametrize("options", [{}, {"steps": 1}, {"steps": 2, "branches": "text"}, {"branches": "image"}])
def test_imram_is_its_paper_in_loops(options: dict[str, object]) -> None:
    images, texts, model = make_sets([3, 5, 1, 4], 0), make_sets([2, 6, 1], 1), build("imram", **options)
    expected = by_pairs(images, texts, lambda image, text: imram_by_loops(model, image, text))
    np.testing.assert_allclose(model(images, texts).detach().numpy(), expected, atol=1e-6)


def test_imram_with_one_step_is_scan_in_both_directions() -> None:
    images, texts = make_sets([3, 5, 1, 4], 0), make_sets([2, 6, 1], 1)
    both = SCAN("t2i", "avg", 9.0)(images, texts) + SCAN("i2t", "avg", 9.0)(images, texts)
    torch.testing.assert_close(build("imram", steps=1)(images, texts), both)


def caan_by_loops(model: CAAN, image: np.ndarray, text: np.ndarray) -> float:
    bilinear = model.affinity.weight.detach().numpy()
    affinity = np.array([[math.tanh(cell @ (bilinear @ word)) for word in text] for cell in image])  # (N, M)

    def pooled(side: ContextAttention, own: np.ndarray, others: np.ndarray, fit: np.ndarray) -> np.ndarray:
        scores = []
        for place, feature in enumerate(own):
            hidden = layer_of(side.own)(feature)
            for number, other in enumerate(others):
                if side.other is not None:
                    hidden = hidden + fit[place, number] / len(others) * layer_of(side.other)(other)
                for second, neighbour in enumerate(own):
                    if side.related is not None:
                        shared = fit[place, number] * fit[second, number] / (len(others) * len(own))
                        hidden = hidden + shared * layer_of(side.related)(neighbour)
            scores.append(float(layer_of(side.score)(np.tanh(hidden))[0]))
        return sum(weight * feature for weight, feature in zip(softmax(scores), own, strict=True))

    return cosine(pooled(model.image, image, text, affinity), pooled(model.text, text, image, affinity.T))


@pytest.mark.parametrize("options", [{}, {"inter": False}, {"intra": False}, {"inter": False, "intra": False}])
def test_caan_is_its_description_in_loops(options: dict[str, object]) -> None:
    images, texts, model = make_sets([3, 5, 1, 4], 0), make_sets([2, 6, 1], 1), build("caan", **options)
    expected = by_pairs(images, texts, lambda image, text: caan_by_loops(model, image, text))
    np.testing.assert_allclose(model(images, texts).detach().numpy(), expected, atol=1e-6)


def dime_by_loops(model: DIME, image: np.ndarray, text: np.ndarray) -> float:
    own, others = (text, image) if model.direction == "t2i" else (image, text)
    contexts = [unit(row) for row in others]
    whole = unit(sum(contexts))
    inputs = [[unit(row) for row in own]] * 4
    for layer in model.layers:
        results = [run_cell(layer, place, rows, contexts, whole) for place, rows in enumerate(inputs)]
        gates = []
        for router, rows in zip(layer.routers, inputs, strict=True):
            hidden = np.maximum(0, layer_of(router[0])(sum(rows) / len(rows)))
            gates.append(np.maximum(0, np.tanh(layer_of(router[2])(hidden))))
        if layer.outputs == 1:
            closed = [float(gate[0] < 1e-4 / 4) for gate in gates]
            over = sum(gate[0] for gate in gates) + sum(closed)
            parts = list(zip(gates, closed, results, inputs, strict=True))
            inputs = [[
                sum(gate[0] * new[row] + shut * old[row] for gate, shut, new, old in parts) / over
                for row in range(len(own))
            ]]  # fmt: skip
            continue
        following = []
        for path in range(layer.outputs):
            over = sum(gate[path] for gate in gates)
            rows = [
                sum(gate[path] / (over + 1e-8) * result[row] for gate, result in zip(gates, results, strict=True))
                + float(over < 1e-4) * results[0][row]
                for row in range(len(own))
            ]
            following.append(rows)
        inputs = following
    norm = model.norm
    mean, variance = norm.running_mean.numpy(), norm.running_var.numpy()
    scale, shift = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    rows = np.array([(row - mean) / np.sqrt(variance + norm.eps) * scale + shift for row in inputs[0]])
    return float(unit(rows.mean(0) + rows.max(0)) @ whole)


def run_cell(layer: RoutedLayer, place: int, rows: list, contexts: list, whole: np.ndarray) -> list[np.ndarray]:
    """One of the four cells on the features of one pair."""
    if place == 0:
        return [np.maximum(0, row) for row in rows]
    if place == 1:
        weights, biases = (
            np.split(layer.reason.in_proj_weight.detach().numpy(), 3),
            np.split(layer.reason.in_proj_bias.detach().numpy(), 3),
        )
        query, key, value = (
            [weight @ row + bias for row in rows] for weight, bias in zip(weights, biases, strict=True)
        )
        out = []
        for row, asked in zip(rows, query, strict=True):
            shares = softmax([float(asked @ offered) / math.sqrt(DIM) for offered in key])
            found = sum(share * each for share, each in zip(shares, value, strict=True))
            out.append(row + layer_of(layer.reason.out_proj)(found))
        return out
    if place == 2:
        out = []
        for row, found in zip(rows, attended_by_loops(rows, contexts, 4.0), strict=True):
            changed = row * np.tanh(layer_of(layer.scale)(found)) + layer_of(layer.shift)(found)
            out.append(row + layer_of(layer.refine[2])(np.maximum(0, layer_of(layer.refine[0])(changed))))
        return out
    fit = np.array([layer_of(layer.guide)(row) * whole for row in rows])
    return [row * (1 + each / np.linalg.norm(fit, axis=0)) for row, each in zip(rows, fit, strict=True)]


@pytest.mark.parametrize("shut", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_dime_is_its_cells_in_loops(direction: str, layers: int, shut: bool) -> None:
    images, texts = make_sets([3, 5, 2, 4], 0), make_sets([2, 6, 3], 1)
    model = build("dime", direction=direction, layers=layers)
    with torch.no_grad():
        model.norm.running_mean.uniform_(-0.1, 0.1)
        model.norm.running_var.uniform_(0.5, 2)
        for router in model.layers[0].routers if shut else ():
            router[2].bias.fill_(-5.0)  # every gate of the first layer is closed
    expected = by_pairs(images, texts, lambda image, text: dime_by_loops(model, image, text))
    np.testing.assert_allclose(model(images, texts).detach().numpy(), expected, atol=1e-6)


def pvse_embeddings_by_loops(side: PolysemousEmbedding, features: np.ndarray) -> list[np.ndarray]:
    hidden = [np.tanh(layer_of(side.hidden)(row)) for row in features]
    scores = np.array([layer_of(side.heads)(row) for row in hidden])  # (N, K)
    embeddings = []
    for head in range(scores.shape[1]):
        weights = softmax(scores[:, head].tolist())
        local = sigmoid(layer_of(side.out)(sum(weight * row for weight, row in zip(weights, features, strict=True))))
        total = features.mean(0) + local
        normed = (total - total.mean()) / math.sqrt(total.var() + side.norm.eps)
        embeddings.append(unit(normed * side.norm.weight.detach().numpy() + side.norm.bias.detach().numpy()))
    return embeddings


@pytest.mark.parametrize("k", [1, 3])
def test_pvse_is_its_paper_in_loops(k: int) -> None:
    images, texts, model = make_sets([3, 5, 1, 4], 0), make_sets([2, 6, 1], 1), build("pvse", k=k)

    def best(image: np.ndarray, text: np.ndarray) -> float:
        pairs = pvse_embeddings_by_loops(model.image, image), pvse_embeddings_by_loops(model.text, text)
        return max(float(left @ right) for left in pairs[0] for right in pairs[1])

    expected = by_pairs(images, texts, best)
    np.testing.assert_allclose(compare(model, images, texts).detach().numpy(), expected, atol=1e-8)


def test_the_terms_of_pvse_in_loops() -> None:
    images, texts, model = make_sets([3, 5, 1, 4], 0), make_sets([2, 6, 1], 1), build("pvse", k=3)
    sets = model.image_sets(images), model.text_sets(texts)
    diversity = 0.0
    for side in sets:
        lengths = []
        for item in side.local.detach().numpy():
            products = [cosine(item[i], item[j]) for i in range(3) for j in range(3) if i != j]
            lengths.append(math.sqrt(sum(value**2 for value in products)) / 9)
        diversity += sum(lengths) / len(lengths)
    left, right = (side.features.detach().flatten(0, 1).numpy() for side in sets)

    def kernel(some: np.ndarray, others: np.ndarray) -> float:
        return float(np.mean([[math.exp(-0.5 * np.sum((x - y) ** 2)) for y in others] for x in some]))

    apart = kernel(left, left) - 2 * kernel(left, right) + kernel(right, right)
    assert model.penalty(*sets).item() == pytest.approx(3 * (0.1 * diversity + 0.01 * apart), abs=1e-5)
    assert build("pvse", k=1).penalty(*sets).item() == 0


def layer_norm(vector: np.ndarray, norm: torch.nn.LayerNorm) -> np.ndarray:
    centred = (vector - vector.mean()) / math.sqrt(vector.var() + norm.eps)
    return centred * norm.weight.detach().numpy() + norm.bias.detach().numpy()


def fusion_by_loops(model: Fusion, image: np.ndarray, text: np.ndarray) -> float:
    """One pair through the transformer, token by token and head by head."""
    kinds = model.kinds.detach().numpy()
    tokens = [kinds[0], *(word + kinds[1] for word in text), *(cell + kinds[2] for cell in image)]
    tokens = [layer_norm(token, model.norm) for token in tokens]
    for layer in model.layers:
        attention = layer.self_attn
        parts = zip(
            *(np.split(t.detach().numpy(), 3) for t in (attention.in_proj_weight, attention.in_proj_bias)), strict=True
        )
        query, key, value = ([weight @ token + bias for token in tokens] for weight, bias in parts)
        size, updated = DIM // attention.num_heads, []
        for token, asked in zip(tokens, query, strict=True):
            heads = []
            for own in (slice(first, first + size) for first in range(0, DIM, size)):
                shares = softmax([float(asked[own] @ offered[own]) / math.sqrt(size) for offered in key])
                heads.append(sum(share * each[own] for share, each in zip(shares, value, strict=True)))
            token = layer_norm(token + layer_of(attention.out_proj)(np.concatenate(heads)), layer.norm1)
            wide = np.maximum(0, layer_of(layer.linear1)(token))
            updated.append(layer_norm(token + layer_of(layer.linear2)(wide), layer.norm2))
        tokens = updated
    return float(layer_of(model.score)(tokens[0])[0])


@pytest.mark.parametrize("layers", [1, 2])
def test_fusion_is_a_transformer_in_loops(layers: int) -> None:
    images, texts, model = make_sets([3, 5, 1], 0), make_sets([2, 4], 1), build("fusion", layers=layers)
    expected = by_pairs(images, texts, lambda image, text: fusion_by_loops(model, image, text))
    np.testing.assert_allclose(model(images, texts).detach().numpy(), expected, atol=1e-8)


def test_fusion_without_layers_is_the_cosine_of_means() -> None:
    images, texts, model = make_sets([3, 5, 1], 0), make_sets([2, 4], 1), build("fusion", layers=0)
    expected = by_pairs(images, texts, lambda image, text: cosine(image.mean(0), text.mean(0)))
    np.testing.assert_allclose(model(images, texts).detach().numpy(), expected, atol=1e-8)


def test_matching_learns_from_true_pairs_and_the_hardest_wrong_ones() -> None:
    similarities = torch.tensor([[0.9, 0.8, 0.1], [0.7, 0.2, 0.3], [0.6, 0.4, 0.5], [0.0, 0.1, 0.2]])
    rows, columns, match = matching_pairs(similarities, torch.tensor([0, 1, 2, 0]))
    pairs = list(zip(rows.tolist(), columns.tolist(), match.tolist(), strict=True))
    assert pairs[:4] == [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 0, 1)]
    assert pairs[4:8] == [(0, 1, 0), (1, 0, 0), (2, 0, 0), (3, 2, 0)]  # the best wrong image of each text
    assert pairs[8:] == [(1, 0, 0), (0, 1, 0), (1, 2, 0)]  # the best wrong text of each image


def test_where_nothing_is_wrong_matching_learns_from_true_pairs_alone() -> None:
    rows, columns, match = matching_pairs(torch.tensor([[0.9], [0.4]]), torch.tensor([0, 0]))
    assert (rows.tolist(), columns.tolist(), match.tolist()) == ([0, 1], [0, 0], [1, 1])
    rows, columns, match = matching_pairs(torch.tensor([[0.9, 0.8], [0.7, 0.2]]), torch.tensor([0, 0]))
    pairs = list(zip(rows.tolist(), columns.tolist(), match.tolist(), strict=True))
    assert pairs == [(0, 0, 1), (1, 0, 1), (0, 1, 0), (1, 1, 0), (0, 1, 0)]  # both texts belong to image 0


def test_the_loss_of_fusion_is_that_of_the_cosines_and_of_matching() -> None:
    images, texts, model = make_sets([3, 5, 2], 0), make_sets([2, 4, 3], 1), build("fusion")
    image_ids, objective = torch.tensor([2, 0, 1]), build_objective("hard")
    terms = model.loss_terms(objective, images, texts, image_ids)
    expected = objective.from_similarities(model.cosines(images, texts), image_ids).loss.item()
    for row, column, match in zip(*matching_pairs(model.cosines(images, texts), image_ids), strict=True):
        probability = sigmoid(model(images, texts)[row, column].item())
        expected -= math.log(probability if match else 1 - probability)
    assert terms.loss.item() == pytest.approx(expected, abs=1e-6)


def test_cvse_is_its_parts_in_loops() -> None:
    images, texts, model = make_sets([3, 5, 1], 0), make_sets([2, 4], 1), build("cvse", concepts=4)
    with torch.no_grad():
        model.graph.copy_(
            torch.tensor([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0.3, 0, 0.7, 0], [0, 0, 0, 0]])
        )  # three concepts
    states = list(model.concepts.detach().numpy())
    for layer in model.convolutions:
        projected = [layer_of(layer)(state) for state in states]
        mixed = [sum(float(share) * each for share, each in zip(row, projected, strict=True)) for row in model.graph]
        states = [np.where(state > 0, state, 0.2 * state) for state in mixed]
    concepts = [unit(state) for state in states[:3]]

    def vector(pool: GuidedPool, score: ConceptScore, features: np.ndarray) -> np.ndarray:
        rows = [unit(row) for row in features]
        mean = sum(rows) / len(rows)
        weights = softmax([
            float(layer_of(pool.score)(np.tanh(layer_of(pool.own)(row)) * np.tanh(layer_of(pool.mean)(mean)))[0])
            for row in rows
        ])  # fmt: skip
        instance = unit(sum(weight * row for weight, row in zip(weights, rows, strict=True)))
        scores = []
        for concept in concepts:
            fit = np.tanh(layer_of(score.concept)(concept)) * np.tanh(layer_of(score.item)(instance))
            scores.append(10 * float(layer_of(score.score)(fit)[0]))
        consensus = unit(sum(weight * concept for weight, concept in zip(softmax(scores), concepts, strict=True)))
        return unit(0.75 * instance + 0.25 * consensus)

    expected = by_pairs(
        images,
        texts,
        lambda image, text: float(
            vector(model.image, model.image_score, image) @ vector(model.text, model.text_score, text)
        ),
    )
    np.testing.assert_allclose(compare(model, images, texts).detach().numpy(), expected, atol=1e-8)


def test_the_concept_graph_by_counting() -> None:
    sentences = [["dog", "ball", "dog"], ["dog", "grass"], ["dog"], ["ball", "grass"], ["sky"]]
    concepts = ["dog", "ball", "grass"]
    edges = np.eye(3)
    for i, first in enumerate(concepts):
        for j, second in enumerate(concepts):
            of_first = [sentence for sentence in sentences if first in sentence]
            share = sum(second in sentence for sentence in of_first) / len(of_first)
            if 5 ** (share - 0.02) - 5**-0.02 >= 0.3:
                edges[i, j] = 1
    degrees = edges.sum(1)
    expected = [[edges[i, j] / math.sqrt(degrees[i] * degrees[j]) for j in range(3)] for i in range(3)]
    np.testing.assert_allclose(concept_graph(sentences, concepts).numpy(), expected, atol=1e-6)


def test_cvse_takes_its_concepts_from_the_training_captions() -> None:
    captions = ["a red dog and a ball", "the dog with a ball", "green grass"] * 4
    model = ModelConfig(dim=8, vision="region", region_dim=6, word_dim=4, interaction="cvse",
                        interaction_options={"concepts": 6})  # fmt: skip
    built, _ = build_model(TrainConfig(model=model, min_word_count=1), captions)
    graph = built.interaction.graph
    assert (graph.diagonal() > 0).tolist() == [True] * 5 + [False]  # ball, dog, grass, green, red
    assert graph[0, 1] > 0  # ball and dog
    assert graph[0, 2] == 0  # ball and grass
    with pytest.raises(ValueError, match="cvse takes its concepts from the words of a bigru, not of liwe"):
        build_model(TrainConfig(model=replace(model, text="liwe")), captions)


@every_interaction
def test_neither_padding_nor_the_rest_of_the_batch_changes_a_similarity(name: str) -> None:
    interaction, images, texts = build(name), make_sets([3, 5, 1, 4], 0), make_sets([2, 6, 1], 1)
    together = compare(interaction, images, texts)
    for row, text in enumerate(doubles(texts)):
        for column, image in enumerate(doubles(images)):
            alone = compare(interaction, FeatureSets.pad([image]), FeatureSets.pad([text]))
            torch.testing.assert_close(alone[0, 0], together[row, column], atol=1e-8, rtol=1e-6)


@every_interaction
def test_gradients_are_finite_and_reach_real_features_only(name: str) -> None:
    interaction, images, texts = build(name).train(), make_sets([3, 5], 0), make_sets([2, 6], 1)
    for sets in (images, texts):
        sets.features.requires_grad_(True)
    pairs = interaction.image_sets(images), interaction.text_sets(texts)
    (interaction(*pairs).square().sum() + interaction.penalty(*pairs)).backward()
    for sets in (images, texts):
        gradient = sets.features.grad
        assert gradient is not None
        assert gradient.isfinite().all()
        assert gradient[sets.mask].abs().sum(-1).gt(0).all()
        assert not gradient[~sets.mask].any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in interaction.parameters())


@every_interaction
def test_blocks_are_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interaction, images, texts = build(name), make_sets([3, 5, 1, 4, 2], 0), make_sets([2, 6, 1, 7], 1)
    whole = compare(interaction, images, texts)
    image_items = doubles(interaction.image_sets(images))
    text_items = doubles(interaction.text_sets(texts))
    largest = 0
    forward = interaction.forward

    def watched(some_images: FeatureSets, some_texts: FeatureSets) -> Tensor:
        nonlocal largest
        largest = max(largest, len(some_images.features) * len(some_texts.features))
        return forward(some_images, some_texts)

    monkeypatch.setattr(interaction, "forward", watched)
    cells, words = max(map(len, image_items)), max(map(len, text_items))
    monkeypatch.setattr(base, "BLOCK_VALUES", 4 * interaction.values_per_pair(words, cells, DIM))
    found = all_similarities(interaction, image_items, text_items)
    torch.testing.assert_close(found, whole.detach().float(), atol=1e-6, rtol=1e-5)
    assert largest == 4  # of 20 pairs


def bytes_at_once(profiler: torch.profiler.profile) -> int:
    """The most that tensors took at a time while a profiler watched."""
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes))


@pytest.mark.slow
@pytest.mark.parametrize(("words", "cells"), [(4, 12), (12, 4), (9, 9)])
@pytest.mark.parametrize(("name", "options"), [
    *((name, {}) for name in INTERACTIONS), ("scan", {"direction": "i2t", "pool": "lse"}),
    ("dime", {"direction": "t2i"}), ("pvse", {"k": 4}), ("fusion", {"heads": 2}),
])  # fmt: skip
def test_a_pair_takes_no_more_numbers_than_it_says(name: str, options: dict[str, Any], words: int, cells: int) -> None:
    dim, images, texts = 16, 16, 15
    model = build_interaction(name, dim, **options).eval()
    pictures, captions = (
        FeatureSets(torch.ones(count, length, dim), torch.ones(count, length, dtype=torch.bool))
        for count, length in ((images, cells), (texts, words))
    )
    with torch.inference_mode():
        sets = model.image_sets(pictures), model.text_sets(captions)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as watched:
            model(*sets)
    of_items = 12 * (images * cells + texts * words) * dim  # made once for each item, not for each pair
    pairs = images * texts * model.values_per_pair(words, cells, dim)
    assert 0.2 * pairs < bytes_at_once(watched) / 4 <= pairs + of_items


SCAN_OF_MANY = """
import resource, torch
from vse_demo.interaction import SCAN, all_similarities
torch.set_num_threads(1)
images, texts = torch.randn(1000, 6, 32).unbind(), torch.randn(5000, 5, 32).unbind()
all_similarities(SCAN(), images[:2], texts[:2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
all_similarities(SCAN(), images, texts)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_memory_stays_bounded_at_five_million_pairs() -> None:
    command = [sys.executable, "-c", SCAN_OF_MANY]
    result = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    grown = int(result.stdout)  # MB: 19 of the result, 32 of a block; all pairs at once would take 3,100
    assert grown < 120


def test_no_images_or_no_texts_give_an_empty_matrix() -> None:
    assert all_similarities(SCAN(), [], [torch.ones(2, DIM)]).shape == (1, 0)
    assert all_similarities(SCAN(), [torch.ones(2, DIM)], []).shape == (0, 1)


def test_pairs_and_embeddings_are_measured_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(6, 4, generator=generator), torch.randn(18, 4, generator=generator)
    image_ids = torch.arange(6).repeat(3)
    for folds in (1, 3):
        found = evaluate_pairs(lambda some, of: texts[some] @ images[of].T, 6, image_ids, folds)
        assert found == evaluate(images, texts, image_ids, folds)


@pytest.mark.parametrize(("name", "options", "message"), [
    ("skan", {}, "unknown interaction 'skan'; choose one of scan"),
    ("scan", {"direction": "up"}, "unknown direction 'up'; choose one of t2i, i2t"),
    ("scan", {"depth": 2}, "interaction scan cannot use the options"),
])  # fmt: skip
def test_what_cannot_be_meant_is_said(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_interaction(name, DIM, **options)


def make_model(name: str = "scan", seed: int = 0) -> InteractionModel:
    torch.manual_seed(seed)
    config = ModelConfig(dim=16, vision="region", region_dim=6, word_dim=8, interaction=name)
    return InteractionModel(config, WordTokenizer(["red", "green", "field", "a"])).eval()


@every_interaction
def test_a_saved_model_compares_as_before(name: str, tmp_path: Path) -> None:
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    loaded = InteractionModel.from_pretrained(tmp_path / "model")
    regions = [np.random.default_rng(seed).normal(size=(3, 6)) for seed in range(2)]
    texts = ["a red field", "green", "a"]
    torch.testing.assert_close(loaded.similarity(regions, texts), model.similarity(regions, texts))
    assert loaded.fingerprint() == model.fingerprint() != make_model(name, seed=1).fingerprint()
    assert holds_interaction(tmp_path / "model")


def test_each_kind_of_model_is_loaded_by_its_own_class(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "pairs")
    VSE(ModelConfig(dim=8, vision="region", region_dim=6, word_dim=4), WordTokenizer(["a"])).save_pretrained(
        tmp_path / "vectors"
    )
    for load in (VSE.from_pretrained, lambda folder: load_model([folder])):
        with pytest.raises(FileError, match="one that compares features, not a VSE"):
            load(tmp_path / "pairs")
    with pytest.raises(FileError, match="holds a VSE, not a InteractionModel"):
        InteractionModel.from_pretrained(tmp_path / "vectors")
    assert not holds_interaction(tmp_path / "vectors")
    assert not holds_interaction(tmp_path / "nothing")


SMALL = {"vision": "region", "region_dim": 16, "dim": 16, "word_dim": 8, "min_word_count": 1, "batch_size": 8,
         "word_dropout": 0.0, "feature_dropout": 0.0, "learning_rate": 5e-3}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPETITORS)
def test_every_competitor_learns_by_its_preset(name: str, precomp_folder: Path, tmp_path: Path) -> None:
    for file in precomp_folder.glob("*_ims.npy"):
        np.save(file, np.load(file)[:, ::6])  # six regions of an image are enough
    config = make_config(name, {**SMALL, "epochs": 10, "learning_rate": 1e-2})
    best = train(config, precomp_folder, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert np.mean(losses[-3:]) < 0.85 * np.mean(losses[:3])
    assert best["images"] == 4


@pytest.mark.slow
def test_the_command_trains_resumes_and_evaluates_an_interaction(
    precomp_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL.items()]
    run = ["train", "--data", str(precomp_folder), "--out", str(tmp_path / "run"), "--preset", "scan-t2i"]
    assert main([*run, *flags, "--epochs", "1", "--interaction-options", "pool=lse"]) == 0
    config = json.loads((tmp_path / "run" / "best" / "config.json").read_text())
    assert config["interaction_options"] == {"direction": "t2i", "pool": "lse"}
    assert main(["train", "--data", str(precomp_folder), "--out", str(tmp_path / "run"), "--resume"]) == 0
    capsys.readouterr()
    command = ["evaluate", "--model", str(tmp_path / "run" / "best"), "--data", str(precomp_folder), "--json"]
    assert main([*command, "--folds", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["captions"] == 20
