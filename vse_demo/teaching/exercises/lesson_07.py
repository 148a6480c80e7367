"""Exercises on evaluation: ranks with several captions, the level of chance, and a checksum."""

from collections.abc import Mapping, Sequence

from vse_demo.teaching.checks import as_array, exercise, need
from vse_demo.teaching.exercises.lesson_06 import check_chance


@exercise("7.1")
def ranks_of_two_images(ranks: Sequence[int]) -> str:
    first, second = as_array(ranks, (2,), "the two ranks").tolist()
    need(
        (first, second) != (1, 1), "a rank begins at 1, and for each image one wrong caption is above its best own: 2."
    )
    need((first, second) != (2, 3), "the other captions of an image are no rivals of its best one.")
    need(
        first == 2, f"image 0: its best own caption has 0.7; how many captions of image 1 are above? Not {first - 1:g}."
    )
    need(
        second == 2,
        f"image 1: its best own caption has 0.6; how many captions of image 0 are above? Not {second - 1:g}.",
    )
    return "Each image has one wrong caption above its best own."


@exercise("7.2")
def chance_among_1000(value: float) -> str:
    return check_chance(value, 1000)


@exercise("7.3")
def rows_that_do_not_add_up(names: Sequence[str], table: Mapping[str, tuple[Sequence[float], float]]) -> str:
    errors = {name: round(sum(recalls) - total, 1) for name, (recalls, total) in table.items()}
    right = {name for name, error in errors.items() if abs(error) > 1}
    need(not isinstance(names, str), "name both rows, in a list.")
    need(set(names) <= set(table), "use the names of the rows, as they stand in the table.")
    for name in names:
        need(
            name in right,
            f"{name} does add up (to within {abs(errors[name]):.1f}, which is rounding or a slip of a digit).",
        )
    need(set(names) == right, f"there is one more; the rows that are off by more than 1 are {len(right)}.")
    return "One is too high by as much as the other is too low: their two R@1 are swapped."
