"""The figures: what they show is what came in."""

from collections.abc import Iterator
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

mpl.use("Agg")
import matplotlib.pyplot as plt

from vse_demo import negative_count, plots

IMAGES = [Image.new("RGB", (60, 40), colour) for colour in ("red", "green", "blue")]


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def texts(ax: plt.Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def boxes_of(artists: list) -> list[mpl.transforms.Bbox]:
    """Where artists of the current figure end up, in pixels."""
    plt.gcf().canvas.draw()
    return [artist.get_window_extent() for artist in artists]


def test_the_pipeline_names_its_parts() -> None:
    assert {"photo", "sentence", "cosine"} <= set(texts(plots.plot_pipeline()))


def test_no_label_of_the_pipeline_touches_an_arrow_or_a_box() -> None:
    ax = plots.plot_pipeline()
    labels = [text for text in ax.texts if text.get_fontsize() < 11]
    assert len(labels) == 8
    boxes = boxes_of(labels)
    paths = [patch.get_transform().transform_path(patch.get_path()) for patch in ax.patches]
    lines = [mpl.path.Path(line) for path in paths for line in path.to_polygons(closed_only=False)]
    for label, box in zip(labels, boxes, strict=True):
        assert not any(line.intersects_bbox(box, filled=False) for line in lines), label


def test_a_matrix_shows_its_numbers() -> None:
    assert texts(plots.plot_matrix(np.array([[1, 2.25], [-3, 4]]), digits=2)) == ["1.00", "2.25", "-3.00", "4.00"]


def test_panels_that_are_compared_have_one_scale() -> None:
    shown = [plots.plot_matrix(np.array([[value, 0.0]]), limits=(0, 10)).images[0] for value in (5.2, 5.5)]
    assert len({image.get_clim() for image in shown}) == 1
    assert shown[0].norm(5.2) < shown[1].norm(5.5) < shown[0].norm(5.2) + 0.05


def test_the_worked_pipeline_ends_in_the_cosine_of_its_two_vectors() -> None:
    draw = np.random.default_rng(0)
    cells, features = draw.normal(size=(9, 64)), draw.normal(size=(3, 64))
    image, text = (vector / np.linalg.norm(vector) for vector in draw.normal(size=(2, 64)))
    ax = plots.plot_worked_pipeline(IMAGES[0], cells, ["a", "red", "$kite"], features, image, text, dims=16)
    assert np.allclose([bar.get_height() for bar in ax.patches], (image * text)[:16])
    assert any(f"the cosine is {image @ text:.2f}" in other.get_title() for other in ax.figure.axes)


def test_a_map_can_show_some_groups_and_keep_the_others_behind() -> None:
    points = np.random.default_rng(0).normal(size=(6, 2))
    ax = plots.plot_space(points, points.repeat(2, 0), np.arange(12) // 2, ["cat", "dog", "cow"] * 2, shown=["dog"])
    assert [part.get_label() for part in ax.collections] == ["texts", "other images", "dog"]
    assert len(ax.lines) == 4


def test_a_note_stands_outside_the_quotation_marks() -> None:
    plots.plot_retrieved_images("red", IMAGES, [0.9, 0.5, 0.1], [True, False, None], note="(rank 7)")
    assert plt.gcf().get_suptitle() == "“red” (rank 7)"


def test_rank_weights_are_drawn_from_rank_one() -> None:
    ax = plots.plot_rank_weights({"max": np.array([1, 0, 0]), "mean": np.ones(3) / 3})
    assert [line.get_label() for line in ax.lines] == ["max", "mean"]
    assert ax.lines[0].get_xydata().tolist() == [[1, 1], [2, 0], [3, 0]]


def test_lines_take_colours_and_none_is_left_out() -> None:
    ax = plots.plot_rank_weights({"max": np.array([1, 0]), "mean": np.ones(2) / 2}, colours=["red", "blue"])
    assert [line.get_color() for line in ax.lines] == ["red", "blue"]
    ax = plots.plot_curves({str(number): ([0], [1]) for number in range(9)}, "step", "loss", colours=["red", "blue"])
    assert [line.get_color() for line in ax.lines] == ["red", "blue"] * 4 + ["red"]
    assert len(plots.plot_curves({str(number): ([0], [1]) for number in range(9)}, "step", "loss").lines) == 9


def test_a_heat_map_covers_its_picture_and_zero_is_neutral() -> None:
    image, heat = plots.plot_heat_map(IMAGES[0], np.array([[0.5, -0.1], [0.0, 0.2]])).images
    assert image.get_array().shape == (40, 60, 3)
    assert heat.get_extent() == [0, 60, 40, 0]
    assert heat.norm(0.0) == 0.5
    assert [mpl.colors.to_hex(heat.cmap(end)).upper() for end in (0.0, 1.0)] == [plots.WRONG, plots.RIGHT]


def test_word_parts_are_coloured_by_sign_and_say_their_sum() -> None:
    ax = plots.plot_word_parts(["a", "dog"], np.array([-0.1, 0.5]))
    assert [bar.get_width() for bar in ax.patches] == [-0.1, 0.5]
    assert [mpl.colors.to_hex(bar.get_facecolor()).upper() for bar in ax.patches] == [plots.WRONG, plots.RIGHT]
    assert "sum to 0.40" in ax.get_xlabel()


def test_the_first_word_is_on_top_even_where_figures_share_their_axis() -> None:
    _, axes = plt.subplots(1, 2, sharey=True)
    for ax in axes:
        plots.plot_word_parts(["a", "dog"], np.array([0.1, 0.5]), ax=ax)
    bottom, top = axes[0].get_ylim()
    assert bottom > 1 > 0 > top


def test_results_are_ticked_and_crossed() -> None:
    plots.plot_retrieved_images("red", IMAGES, [0.9, 0.5, 0.1], [True, False, None])
    assert [ax.get_title() for ax in plt.gcf().axes] == ["✓ 0.90", "✗ 0.50", "0.10"]
    ax = plots.plot_retrieved_captions(IMAGES[0], ["one", "two"], [0.9, 0.5], [True, False])
    assert texts(ax) == ["✓ 0.90", "one", "✗ 0.50", "two"]


def test_scores_of_pictures_of_any_shape_stand_in_one_line() -> None:
    images = [Image.new("RGB", size) for size in ((60, 20), (60, 40), (20, 60))]
    plots.plot_retrieved_images("shapes", images, [0.9, 0.5, -0.1], [True, False, None])
    titles = [ax.title for ax in plt.gcf().axes]
    assert [title.get_text() for title in titles] == ["✓ 0.90", "✗ 0.50", "−0.10"]
    assert len({round(box.y0) for box in boxes_of(titles)}) == 1


def test_a_long_caption_stays_in_its_place() -> None:
    captions = ["short", "many words " * 40, "end"]
    ax = plots.plot_retrieved_captions(IMAGES[0], captions, [0.9, 0.5, -0.1], [True, False, None])
    boxes = boxes_of(ax.texts)
    assert ax.texts[3].get_text().endswith(" …")
    assert boxes[3].x1 < ax.figure.bbox.x1
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[n + 1 :])


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_the_k_plane_is_the_formula(variant: str) -> None:
    k = plots.plot_k_plane(variant, 64).images[0].get_array()
    assert k[50, 30] == negative_count(0.30, 0.50, 64, variant)


def test_the_k_plane_shows_spaces_and_a_run() -> None:
    ax = plots.plot_k_plane("official", points={"ideal": (1.0, 1.0)}, path=([0.1, 0.2], [0.8, 0.9]))
    assert f"ideal: K = {negative_count(1.0, 1.0, 128, 'official')}" in texts(ax)
    run, start, ideal = ax.lines
    assert run.get_xydata().tolist() == [[0.1, 0.8], [0.2, 0.9]]
    assert start.get_xydata().tolist() == [[0.1, 0.8]]
    assert ideal.get_xydata().tolist() == [[1.0, 1.0]]


def test_curves_comparison_space_and_circle_show_every_point() -> None:
    assert len(plots.plot_curves({"a": ([1, 2], [3, 4]), "b": ([1], [2])}, "step", "loss").lines) == 2
    ax = plots.plot_comparison({"mean": [1.0, 3.0], "adpool": [4.0, 5.0, 6.0]})
    assert [line.get_xdata()[0] for line in ax.lines[1::2]] == [2.0, 5.0]
    points = np.random.default_rng(0).normal(size=(6, 2))
    ax = plots.plot_space(points, points.repeat(2, 0) + 0.1, np.arange(12) // 2, ["cat", "dog"] * 3)
    assert sum(len(part.get_offsets()) for part in ax.collections) == 18
    assert len(ax.lines) == 12
    ax = plots.plot_trade_off({"mean": (3.0, 200.0), "adpool": (1.0, 250.0)}, "speed", "RSUM", highlight="adpool")
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[3.0, 200.0]], [[1.0, 250.0]]]
    assert [line.get_color() for line in ax.lines] == [plots.IMAGE, "#000000"]  # vermilion would say that it is wrong
    assert len(plots.plot_circle(points, points).lines) == 6


def test_no_two_of_many_groups_look_alike() -> None:
    points = np.random.default_rng(0).normal(size=(40, 2))
    names = [f"group {number}" for number in range(40)]
    groups = plots.plot_space(points, points, np.arange(40), names).collections[1:]
    looks = {(tuple(part.get_facecolor()[0]), part.get_paths()[0].vertices.tobytes()) for part in groups}
    assert len(looks) == 40


def test_differences_stand_beside_what_was_expected() -> None:
    ax = plots.plot_differences({"a": [1.0, 3.0], "b": [-4.0, -2.0]}, {"b": 5.0}, [plots.RIGHT, plots.WRONG])
    _, *seeds, diamonds = ax.lines
    assert [line.get_color() for line in seeds[::2]] == [plots.RIGHT, plots.WRONG]
    assert [line.get_xdata()[0] for line in seeds[1::2]] == [2.0, -3.0]
    assert diamonds.get_xydata().tolist() == [[5.0, 1.0]]
    assert "diamond" in ax.get_xlabel()
    assert "diamond" not in plots.plot_differences({"a": [1.0]}).get_xlabel()


@pytest.mark.parametrize("ends", [(4500, 1.6e8), (0.6, 80), (1, 6), (1, 7000)])
def test_ticks_of_a_trade_off_are_whole_numbers_that_keep_clear_of_each_other(ends: tuple[float, float]) -> None:
    ax = plots.plot_trade_off({"slow": (ends[0], 1), "fast": (ends[1], 2)}, "x", "y")
    ax.figure.draw_without_rendering()
    low, high = ax.get_xlim()
    ticks = [tick.label1 for tick in ax.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert len(ticks) > 1
    assert not any("e" in tick.get_text() for tick in ticks)
    boxes = boxes_of(ticks)
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_name_in_a_trade_off_keeps_clear_of_the_point_to_its_right() -> None:
    ax = plots.plot_trade_off({"gcn": (1, 1), "softpool": (5.1, 10), "manual": (5.6, 10.1), "top": (6, 20)}, "x", "y")
    boxes = boxes_of(ax.texts)
    points = [ax.transData.transform(line.get_xydata()[0]) for line in ax.lines]
    for name, box in zip(texts(ax), boxes, strict=True):
        assert not any(box.padded(6).contains(*point) for point in points), name  # 6: half the size of a point
