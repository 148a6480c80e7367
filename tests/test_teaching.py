"""Checks of the exercises tell wrong, untouched and right answers apart; questions give reasons for every option."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import normalize

from vse_demo import AdPool, make_config, retrieval_ranks
from vse_demo.teaching import EXERCISES, check, quiz, reveal, sliders
from vse_demo.teaching.exercises.lesson_06 import rsum_by_chance
from vse_demo.teaching.questions import FOLDER
from vse_demo.teaching.tables import Table
from vse_demo.training import TrainConfig

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = normalize(torch.randn(60, 8, generator=GENERATOR))
IMAGE_IDS = torch.arange(60).repeat_interleave(2)
TEXTS = normalize(IMAGES[IMAGE_IDS] + 0.4 * torch.randn(120, 8, generator=GENERATOR))
SIMILARITIES = TEXTS @ IMAGES.T
ROWS = torch.randn(5, 7, 3, generator=GENERATOR)
BATCH = torch.tensor([[[1.0, 6, 2], [9, 2, 1], [4, 5, 2], [2, 3, 7]]]).double()
SETS, ORDER = torch.randn(2, 6, 8, generator=GENERATOR), torch.tensor([2, 0, 1, 5, 3, 4])
CONFIG = make_config("vse+2ad", {"batch_size": 32, "epochs": 6})


def neighbours(step: int) -> float:
    nearest = [set(row) for row in SIMILARITIES.topk(5, dim=1).indices.tolist()]
    return float(np.mean([len(nearest[2 * p] & nearest[(2 * (p + step) + 1) % 120]) for p in range(60)]))


def mean_pool(score: float = 0.0, token: bool = True) -> AdPool:
    pool = AdPool(3, variant="paper", balance=(1.0, 0.0) if token else (0.0, 1.0)).double()
    with torch.no_grad():
        pool.token_score.weight[:] = score
    return pool


@torch.no_grad()
def pooled(rows: torch.Tensor) -> torch.Tensor:
    return ANY_POOL(rows)


torch.manual_seed(0)
ANY_POOL = AdPool(8)
with torch.no_grad():
    OLD_WEIGHTS = ANY_POOL(SETS, return_trace=True)[1].input_weights()


def with_k(k: int, **more: object) -> TrainConfig:
    return replace(CONFIG, objective_options={"fixed_k": k, **more})


def run(k: list[float], alignment: float) -> dict[str, np.ndarray]:
    return {"k": np.array(k), "alignment": np.array([0.5, alignment])}


def mended(align: float, uniform: float, batch: int) -> int:
    maturity = min(max(align - uniform, 0.0), 1.0)
    return max(1, min(math.floor(batch * math.cos(maturity * math.pi / 2)), batch - 1))


def papers(align: float, uniform: float, batch: int) -> int:
    return max(1, min(math.floor(batch * math.cos((align + uniform) * math.pi / 4)), batch - 1))


MAPS = [np.random.default_rng(seed).normal(size=(30, 2)) + np.arange(30)[:, None] for seed in (0, 1)]


def common_neighbours() -> float:
    kept = []
    for place in range(30):
        near = [sorted(range(30), key=lambda j: ((m[j] - m[place]) ** 2).sum())[1:11] for m in MAPS]
        kept.append(len(set(near[0]) & set(near[1])) / 10)
    return float(np.mean(kept))


AWAY = torch.tensor([0.5, 0.5, 0, 0, 0, 0, 0, 0])  # half of a gap between images and texts
APART = normalize(IMAGES + AWAY), normalize(TEXTS - AWAY)
LEARN = torch.arange(60) % 3 > 0


def linear_rule(closed: float) -> float:
    seen = LEARN, LEARN[IMAGE_IDS]
    gap = APART[0][seen[0]].mean(0) - APART[1][seen[1]].mean(0)
    moved = normalize(APART[0] - closed * gap / 2), normalize(APART[1] + closed * gap / 2)
    known, new = ([points[rows ^ flip] for points, rows in zip(moved, seen, strict=True)] for flip in (False, True))
    labels = np.repeat([1, 0], [len(points) for points in known])
    rule = LogisticRegression(class_weight="balanced").fit(torch.cat(known).numpy(), labels)
    return float(rule.predict(new[0].numpy()).mean() + 1 - rule.predict(new[1].numpy()).mean()) / 2


PHOTO_RANKS = retrieval_ranks(SIMILARITIES.flip(0), IMAGE_IDS)[0]
LOST = int(PHOTO_RANKS.argmax())
WON = int(SIMILARITIES.flip(0)[:, LOST].argmax())
TOLD = SimpleNamespace(
    words=["a", "red", "kite", "flies"], text=SimpleNamespace(parts=torch.tensor([0.1, 0.4, 0.3, 0.2]))
)
WORDS = normalize(torch.randn(9, 8, generator=GENERATOR))


def encode(ids: list[int]) -> torch.Tensor:
    return normalize(WORDS[list(ids)].sum(0), dim=0)


def rank(ids: list[int]) -> int:
    cosines = IMAGES @ encode(ids)
    return 1 + int((cosines > cosines[4]).sum())


TABLE = {
    "good": ([10.0, 20, 30, 40, 50, 60], 210.0),
    "high": ([15.0, 20, 30, 40, 50, 60], 210.0),
    "low": ([5.0, 20, 30, 40, 50, 60], 210.0),
}
LESSON: dict[str, dict[str, Any]] = {  # what each check is given of its lesson
    "1.2": {"similarities": SIMILARITIES, "image_ids": IMAGE_IDS.numpy()},
    "1.3": {"boat": IMAGES[0], "beach": IMAGES[1], "image_vectors": IMAGES},
    "3.1": {"batch": ROWS},
    "3.2": {"batch": BATCH},
    "3.3": {"pool": ANY_POOL, "sets": SETS, "order": ORDER},
    "4.3": {"similarities": SIMILARITIES},
    "6.3": {"config": CONFIG},
    "7.3": {"table": TABLE},
    "8.1": {"images": IMAGES, "texts": TEXTS, "image_ids": IMAGE_IDS, "shift": torch.full((8,), 0.3)},
    "8.3": {"images": APART[0], "texts": APART[1], "image_ids": IMAGE_IDS, "learn": LEARN},
    "9.2": {"similarities": SIMILARITIES.flip(0), "image_ids": IMAGE_IDS, "explain": lambda photo, caption: TOLD},
    "10.3": {"first": SIMILARITIES, "belongs": IMAGE_IDS},
    "9.3": {"ids": [0, 1, 2, 3], "suspect": [1, 2], "encode": encode, "image_vectors": IMAGES, "target": 4},
}
RIGHT: dict[str, tuple] = {
    "1.1": (lambda one, other: one @ other / np.linalg.norm(one) / np.linalg.norm(other),),
    "1.2": (neighbours(0), np.mean([neighbours(step) for step in range(1, 60)])),
    "1.3": (7 * (IMAGES[0] + IMAGES[1]),),
    "2.1": (np.array([0, 0.5, 0.5, 0]),),
    "2.2": (([1, 5], [4, 5]), ([0, 6], [3, 3])),
    "2.3": (lambda sets, weights: (sets * weights[:, None]).sum(1), True, False),
    "3.1": ((ROWS.softmax(1) * ROWS).sum(1),),
    "3.2": (mean_pool(), "above"),
    "3.3": (pooled(SETS), pooled(SETS[:, ORDER]), OLD_WEIGHTS[:, ORDER]),
    "4.1": (10, 20),
    "4.2": (torch.tensor([[0.0, 1.0]]).repeat(4, 1), torch.tensor([[0.0, -1.0]]).repeat(4, 1)),
    "4.3": (SIMILARITIES.mean() + SIMILARITIES.var() / 2,),
    "5.1": (math.log(1 + 11 * math.e**4),),
    "5.2": (mended,),
    "5.3": ({"AdOpt, code": run([60, 5], 0.999), "fixed K = 63": run([63, 63], 0.4)},),
    "6.1": (rsum_by_chance(41),),
    "6.2": ([5 - 0.15 * step for step in range(25)],),
    "6.3": ({"K = 1": with_k(1), "all negatives": with_k(31, variant="official")},),
    "7.1": ([2, 2],),
    "7.2": (rsum_by_chance(1000),),
    "7.3": (["low", "high"],),
    "8.1": (True, False),
    "8.2": (common_neighbours(), MAPS),
    "8.3": (linear_rule(0), linear_rule(1)),
    "9.1": (np.array([0, 4.0, 4.2]) / 74**0.5,),
    "9.2": (LOST, WON, ["red", "kite", "flies"]),
    "9.3": ([0, 3], [rank([0, 1, 2, 3]), rank([0, 3])]),
    "10.1": (0.8,),
    "10.2": (500, 0.05),
    "10.3": (lambda first, n: 100 * float((retrieval_ranks(first, IMAGE_IDS)[1] <= n).float().mean()),),
    "11.1": (lambda parts, k: sorted((hit for part in parts for hit in part), reverse=True)[:k],),
    "11.2": (1024, 3815),
    "11.3": (lambda p: 128 // p - 1, [1]),
}  # fmt: skip
WRONG: list[tuple[str, tuple, str]] = [  # the exercise, an answer, what its verdict speaks of
    ("1.1", (lambda one, other: one @ other,), "dot product"),
    ("1.1", (lambda one, other: one @ other / np.linalg.norm(one),), "one length only"),
    ("1.1", (lambda one, other: np.linalg.norm(one - other),), "distance"),
    ("1.1", (0.8,), "function"),
    ("1.1", (lambda one, other: ...,), "returns nothing"),
    ("1.2", (neighbours(0) / 5, neighbours(3) / 5), "share"),
    ("1.2", (neighbours(3), neighbours(0)), "wrong way round"),
    ("1.2", (neighbours(0), neighbours(0)), "captions of two photos"),
    ("1.3", (IMAGES[0],), "direction"),
    ("1.3", (IMAGES[0] * IMAGES[1],), "multiplied"),
    ("1.3", (IMAGES[0][:4],), "shape"),
    ("2.1", (np.full(4, 0.25),), "mean"),
    ("2.1", ([0, 1, 1, 0],), "sum to 1"),
    ("2.1", ([0, 1, 0, 0],), "middle ranks"),
    ("2.1", ([0.5, 0, 0, 0.5],), "largest and the smallest"),
    ("2.2", (([1, 5], [4, 6]), ([0, 6], [3, 3])), "different maxima"),
    ("2.2", (([1, 5], [5, 1]), ([0, 6], [3, 3])), "either"),
    ("2.2", (([1, 5], [4, 5]), ([0, 6], [6, 0])), "either"),
    ("2.3", (lambda s, w: (s.sort(1, descending=True).values * w[:, None]).sum(1), True, False), "you sorted"),
    ("2.3", (lambda sets, weights: (sets * weights[:, None]).sum(1), True, True), "belongs to a place"),
    ("2.3", (lambda sets, weights: sets.mean(1), True, False), "times its weight"),
    ("3.1", (ROWS.softmax(1).sum(1),), "summed the weights"),
    ("3.1", ((ROWS.softmax(2) * ROWS).sum(1),), "over the dimensions"),
    ("3.1", (ROWS.mean(1),), "mean"),
    ("3.1", (ROWS,), "shape"),
    ("3.2", (mean_pool(0.1), "above"), "count differently"),
    ("3.2", (mean_pool(token=False), "above"), "soft maximum"),
    ("3.2", (mean_pool(), "below"), "first figure"),
    ("3.3", (pooled(SETS), pooled(SETS[:, ORDER]), OLD_WEIGHTS), "still the old"),
    ("3.3", (pooled(SETS), pooled(SETS[:, ORDER]), OLD_WEIGHTS[:, ORDER.argsort()]), "wrong way"),
    ("3.3", (pooled(SETS) + 1, pooled(SETS[:, ORDER]), OLD_WEIGHTS[:, ORDER]), "before"),
    ("4.1", (20, 20), "2t"),
    ("4.1", (10, -20), "sign"),
    ("4.1", (0.05, 20), "temperature itself"),
    ("4.2", (torch.eye(4)[:, :2], torch.eye(4)[:, :2]), "length 1"),
    ("4.2", (torch.tensor([[0.0, 1.0]]).repeat(4, 1), torch.tensor([[0.0, 1.0]]).repeat(4, 1)), "must be −1"),
    ("4.3", (SIMILARITIES.mean(),), "half of the variance"),
    ("4.3", (SIMILARITIES.mean() + SIMILARITIES.var(),), "whole variance"),
    ("4.3", (SIMILARITIES.mean() + SIMILARITIES.std() / 2,), "standard deviation"),
    ("5.1", (math.log(12),), "margin is missing"),
    ("5.1", (math.log(11) + 4,), "positive"),
    ("5.1", (0.2,), "hard triplet"),
    ("5.2", (papers,), "ideal"),
    ("5.2", (lambda align, uniform, batch: 127 if align < 0.5 else 1,), "one point"),
    ("5.2", (lambda align, uniform, batch: batch * 0.9,), "whole number"),
    ("5.2", (lambda align, uniform, batch: None,), "returns nothing"),
    ("5.3", ({"AdOpt, code": run([60, 5], 0.999)},), "two runs"),
    ("5.3", ({"AdOpt, code": run([60, 5], 0.3), "fixed K = 63": run([63, 63], 0.4)},), "noise"),
    ("5.3", ({"AdOpt, code": run([60, 5], 0.999), "fixed K = 63": run([5, 5], 0.4)},), "K = 63"),
    ("6.1", (rsum_by_chance(41) / 100,), "per cent"),
    ("6.1", (2 * 100 * 16 / 41,), "five captions"),
    ("6.1", (100 * 16 / 41 + 100 * 16 / 205,), "counted one"),
    ("6.1", (90,), "too large"),
    ("6.2", ([5.0] * 25,), "never changes"),
    ("6.2", ([5 - 0.01 * step for step in range(25)],), "less than half"),
    ("6.2", ([5.0, 1.0],), "25 losses"),
    ("6.3", ({"K = 1": replace(CONFIG, epochs=3), "all negatives": CONFIG},), "epochs"),
    ("6.3", ({"K = 1": CONFIG, "all negatives": CONFIG},), "fixed_k"),
    ("6.3", ({"K = 1": replace(CONFIG, objective="hard"), "all negatives": CONFIG},), "soft loss"),
    ("6.3", ({"K = 1": replace(CONFIG, seed=7), "all negatives": CONFIG},), "more than K"),
    ("6.3", ({"K = 1": with_k(1, temperature=1.0), "all negatives": with_k(31)},), "temperature"),
    ("6.3", ({"K = 1": with_k(1), "all negatives": with_k(31, variant="paper")},), "variant"),
    ("7.1", ([1, 1],), "begins at 1"),
    ("7.1", ([3, 2],), "image 0"),
    ("7.1", (2,), "shape"),
    ("7.2", (rsum_by_chance(1000) / 100,), "per cent"),
    ("7.2", (1.6,), "other"),
    ("7.3", (["good", "low"],), "does add up"),
    ("7.3", (["low"],), "one more"),
    ("7.3", ("low",), "both rows"),
    ("8.1", (False, True), "wrong way round"),
    ("8.1", (True, True), "another number"),
    ("8.1", (1.0, 0.0), "True or False"),
    ("8.2", (10 * common_neighbours(), MAPS), "share"),
    ("8.2", (1.0, [MAPS[0], MAPS[0]]), "same"),
    ("8.2", (0.01, MAPS), "too small"),
    ("8.3", (0.55, 0.9), "wrong way round"),
    ("8.3", (90, 55), "between 0 and 1"),
    ("8.3", (1.0, 0.99), "less often"),
    ("8.3", (linear_rule(0), linear_rule(0) - 0.01), "training photos"),
    ("8.3", (0.71, 0.69), "more often"),
    ("9.1", ([0, 4.0, 4.2],), "length"),
    ("9.1", ([0.1, 0.4, 0.45],), "no part"),
    ("9.1", ([0, 0.5, 0.4532],), "red"),
    ("9.2", (int(PHOTO_RANKS.argmin()), WON, ["red", "kite", "flies"]), "worst"),
    ("9.2", (LOST, (WON + 1) % 120, ["red", "kite", "flies"]), "column"),
    ("9.2", (LOST, WON, ["a", "red", "kite"]), "yours has 2"),
    ("9.3", ([0, 1, 2, 3], [1, 1]), "as long as before"),
    ("9.3", ([0, 2, 3], [1, 1]), "all pieces"),
    ("9.3", ([0, 3], [rank([0, 1, 2, 3]), rank([0, 3]) + 5]), "without the suspect is too large"),
    ("9.3", ([0, 3], [rank([0, 1, 2, 3]) - 1, rank([0, 3]) - 1]), "begins at 1"),
    ("10.1", (0.9,), "each word chooses"),
    ("10.1", (0.6,), "mean of all four"),
    ("10.1", (1.6,), "sum"),
    ("10.1", (0.7,), "too small"),
    ("10.2", (400, 0.05), "too small"),
    ("10.2", (0.002, 0.05), "other way up"),
    ("10.2", (500, 500), "100 pairs"),
    ("10.3", (lambda first, n: float((retrieval_ranks(first, IMAGE_IDS)[1] <= n).float().mean()),), "per cent"),
    ("10.3", (lambda first, n: 100.0,), "for n = 1"),
    ("10.3", (lambda first, n: None,), "returns nothing"),
    ("11.1", (lambda parts, k: sorted((hit for part in parts for hit in part[:1]), reverse=True)[:k],), "three best"),
    ("11.1", (lambda parts, k: sorted(hit for part in parts for hit in part)[-k:],), "best first"),
    ("11.2", (2048, 3815), "single precision"),
    ("11.2", (1024, 3814), "round up"),
    ("11.2", (900, 3815), "too small"),
    ("11.3", (lambda p: 128 // p + 1, [1]), "one of p processes"),
    ("11.3", (lambda p: 128 // p, [1]), "right one"),
    ("11.3", (lambda p: 128 // p - 1, [1, 2]), "only p = 1"),
]  # fmt: skip


def test_every_exercise_has_a_right_answer_and_two_wrong_ones_here() -> None:
    check("1.1", ...)  # registers all
    assert set(RIGHT) == set(EXERCISES)
    assert all(sum(name == other for other, *_ in WRONG) >= 2 for name in EXERCISES)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_passes_and_is_told_why(name: str) -> None:
    verdict = check(name, *RIGHT[name], **LESSON.get(name, {}))
    assert verdict, verdict
    assert re.match(r"✓ Right\. .{20,}\.$", repr(verdict))


@pytest.mark.parametrize("name", RIGHT)
def test_an_untouched_skeleton_never_passes(name: str) -> None:
    answers = RIGHT[name]
    for place in range(len(answers)):
        for nothing in (..., None):
            given = [*answers[:place], nothing, *answers[place + 1 :]]
            verdict = check(name, *given, **LESSON.get(name, {}))
            assert not verdict
            assert repr(verdict).startswith(f"○ Exercise {name} is not answered yet")


@pytest.mark.parametrize(("name", "answers", "speaks_of"), WRONG)
def test_a_wrong_answer_is_told_what_is_off(name: str, answers: tuple, speaks_of: str) -> None:
    verdict = check(name, *answers, **LESSON.get(name, {}))
    assert not verdict
    assert repr(verdict).startswith("✗ Not yet: ")
    assert "could not be used" not in repr(verdict)
    assert speaks_of in repr(verdict)


@pytest.mark.parametrize("name", RIGHT)
def test_an_answer_of_another_kind_is_no_reason_to_stop(name: str) -> None:
    for strange in ("three", object(), float("nan"), [[1, 2], [3]]):
        assert not check(name, *[strange] * len(RIGHT[name]), **LESSON.get(name, {}))


@pytest.mark.parametrize(
    ("name", "right"),
    [("5.1", "6.40"), ("6.1", "75.5"), ("7.2", "3.2"), ("10.1", "0.8"), ("10.2", "500 "), ("11.2", "1,?024")],
)
def test_a_check_of_a_number_does_not_give_it_away(name: str, right: str) -> None:
    for wrong in (0.11, 2222):
        assert not re.search(right, repr(check(name, *[wrong] * len(RIGHT[name]))))


def test_an_unknown_exercise_is_an_error_of_the_lesson() -> None:
    with pytest.raises(ValueError, match=r"unknown exercise '0.9'; choose one of 1.1"):
        check("0.9", 1)


def test_a_guess_is_compared_and_a_missing_one_is_no_harm() -> None:
    assert reveal("b", " B ", "Because.")
    assert "You guessed a; it is b. Because." in repr(reveal("b", "a", "Because."))
    assert repr(reveal("b", ..., "Because.")).startswith("○ It is b. Because.")


def test_a_guess_that_nothing_computes_is_looked_up_by_its_name() -> None:
    assert reveal("1.1", "a")
    assert "two unrelated directions" in repr(reveal("1.1", "b"))
    with pytest.raises(ValueError, match=r"unknown answer '1.2'; choose one of a, b, c, 1.1"):
        reveal("1.2", "a")


@pytest.mark.parametrize("lesson", [path.stem for path in sorted(FOLDER.glob("*.toml"))])
def test_a_quiz_has_five_questions_and_a_reason_for_every_option(lesson: str) -> None:
    questions = quiz(lesson).questions
    assert len(questions) == 5
    for question in questions:
        assert question.ask.endswith(("?", "…"))
        assert 3 <= len(question.options) <= 4
        assert len({says for says, _ in question.options}) == len(question.options)
        assert all(len(why) > 20 for _, why in question.options)
    assert len({question.right for question in questions}) > 1  # not always the same letter


def test_a_quiz_unfolds_without_a_script_and_reads_as_plain_text() -> None:
    shown = quiz("01_tour")
    page = shown._repr_html_()
    assert page.count("<details>") == sum(len(question.options) for question in shown.questions)
    assert page.count("✓ Right.") == 5
    assert "<script" not in page
    assert repr(shown).splitlines()[0].startswith("1. ")
    assert re.search(r"Right are: 1[a-d], 2[a-d], 3[a-d], 4[a-d], 5[a-d]\.$", repr(shown))


def draw_line(height: float, width: float) -> None:
    import matplotlib.pyplot as plt

    plt.figure(figsize=(1, 1)).add_axes((0, 0, 1, 1)).axhline(height, lw=width)


def test_sliders_have_a_picture_for_every_choice_and_show_the_one_they_start_at() -> None:
    made = sliders(draw_line, [0.5, 9], height=(0.2, 0.5, 0.8), width=(1, 9))
    assert len(set(made.pictures)) == 6
    html = made._repr_html_()
    assert f'src="data:image/webp;base64,{made.pictures[3]}"' in html  # the second height, the second width
    assert re.findall(r'max="(\d)" value="(\d)"', html) == [("2", "1"), ("1", "1")]
    assert re.findall(r"<output>(.+?)</output>", html) == ["0.5", "9"]
    alone = sliders(draw_line, [0.5, 9], height=[0.5], width=[9])
    assert alone.pictures == made.pictures[3:4]


def test_a_slider_starts_at_a_value_that_it_has() -> None:
    with pytest.raises(ValueError, match=r"width starts at 2, which is not among \[1, 9\]"):
        sliders(draw_line, [0.5, 2], height=[0.5], width=(1, 9))


def test_a_table_keeps_the_names_of_its_rows_in_sight_and_reads_as_plain_text() -> None:
    table = Table(["", "R@1", "RSUM"], [["VSE <0>", "9.5", "490.5"], ["SCAN", "–", "7"]])
    assert repr(table) == "         R@1   RSUM\nVSE <0>  9.5  490.5\nSCAN       –      7"
    page = table._repr_html_()
    assert page.count("position: sticky; left: 0") == 3  # the corner and two rows
    assert "VSE &lt;0&gt;</th><td>9.5</td><td>490.5</td>" in page
    with pytest.raises(ValueError, match="a row of 1 in a table of 2 columns"):
        Table(["", "R@1"], [["SCAN"]])
