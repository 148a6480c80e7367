"""The figures: what they show is what came in."""

from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

mpl.use("Agg")
import matplotlib.pyplot as plt

from vse_demo import negative_count, plots

PICTURES = [Image.new("RGB", (60, 40), colour) for colour in ("red", "green", "blue")]


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def texts(ax: plt.Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_the_pipeline_names_its_parts() -> None:
    assert {"photo", "sentence", "cosine"} <= set(texts(plots.plot_pipeline()))


def test_a_matrix_shows_its_numbers() -> None:
    assert texts(plots.plot_matrix(np.array([[1, 2.25], [-3, 4]]), digits=2)) == ["1.00", "2.25", "-3.00", "4.00"]


def test_rank_weights_are_drawn_from_rank_one() -> None:
    ax = plots.plot_rank_weights({"max": np.array([1, 0, 0]), "mean": np.ones(3) / 3})
    assert [line.get_label() for line in ax.lines] == ["max", "mean"]
    assert ax.lines[0].get_xydata().tolist() == [[1, 1], [2, 0], [3, 0]]


def test_a_heat_map_covers_its_picture_and_zero_is_neutral() -> None:
    picture, heat = plots.plot_heat_map(PICTURES[0], np.array([[0.5, -0.1], [0.0, 0.2]])).images
    assert picture.get_array().shape == (40, 60, 3)
    assert heat.get_extent() == [0, 60, 40, 0]
    assert heat.norm(0.0) == 0.5


def test_word_parts_are_coloured_by_sign_and_say_their_sum() -> None:
    ax = plots.plot_word_parts(["a", "dog"], np.array([-0.1, 0.5]))
    assert [bar.get_width() for bar in ax.patches] == [-0.1, 0.5]
    assert [mpl.colors.to_hex(bar.get_facecolor()).upper() for bar in ax.patches] == [plots.WRONG, plots.RIGHT]
    assert "sum to 0.40" in ax.get_xlabel()


def test_results_are_ticked_and_crossed() -> None:
    plots.plot_retrieved_images("red", PICTURES, [0.9, 0.5, 0.1], [True, False, None])
    assert [ax.get_title() for ax in plt.gcf().axes] == ["✓ 0.90", "✗ 0.50", "0.10"]
    ax = plots.plot_retrieved_captions(PICTURES[0], ["one", "two"], [0.9, 0.5], [True, False])
    assert texts(ax) == ["✓ 0.90", "one", "✗ 0.50", "two"]


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_the_k_plane_is_the_formula(variant: str) -> None:
    k = plots.plot_k_plane(variant, 64).images[0].get_array()
    assert k[50, 30] == negative_count(0.30, 0.50, 64, variant)


def test_curves_comparison_space_and_circle_show_every_point() -> None:
    assert len(plots.plot_curves({"a": ([1, 2], [3, 4]), "b": ([1], [2])}, "step", "loss").lines) == 2
    ax = plots.plot_comparison({"mean": [1.0, 3.0], "adpool": [4.0, 5.0, 6.0]})
    assert [line.get_xdata()[0] for line in ax.lines[1::2]] == [2.0, 5.0]
    points = np.random.default_rng(0).normal(size=(6, 2))
    ax = plots.plot_space(points, points.repeat(2, 0) + 0.1, np.arange(12) // 2, ["cat", "dog"] * 3)
    assert sum(len(part.get_offsets()) for part in ax.collections) == 18
    assert len(ax.lines) == 12
    assert len(plots.plot_circle(points, points).lines) == 6
