"""Guesses: written down before a figure, compared with it afterwards."""

from vse_demo.teaching.checks import Verdict, is_untouched
from vse_demo.utils.checks import check_choice

ANSWERS = {  # of guesses that no cell computes, by lesson.number: here, so that no cell below a question holds it
    "1.1": ("a", "In hundreds of dimensions two unrelated directions stand nearly at a right angle."),
    "3.1": ("b", "A softmax of −30 · x puts its weight on the smallest x: see the left end of the curves."),
    "4.1": ("a", "It ends with everything on one point: alignment 1, and nothing is found."),
    "4.2": ("c", "All pairs end at the same similarity, true ones and others: nothing can be found."),
    "5.1": ("b", "K wrong photos are pushed and the right one is pulled; the others have no gradient at all."),
    "5.2": (
        "c",
        "On one point alignment and uniformity are both near 1, so their sum is largest and the cosine near 0.",
    ),
    "6.1": ("b", "With the hardest negative alone the space stays collapsed; the curves below show how."),
    "7.2": ("c", "A standard deviation made of two numbers is often far too small."),
    "10.1": ("c", "It has learned far more than chance, and far less than the other two."),
    "11.1": ("c", "Near vectors mostly share a group."),
    "11.2": ("b", "Every process computes the loss of the whole batch, and so counts K over all of it."),
}

NO_GUESS = " (You made no guess; a wrong one would have taught you more.)"


def reveal(seen: str, guess: object, because: str = "") -> Verdict:
    """Say what was seen beside what was guessed.

    Args:
        seen: The letter of what the figure shows, or the name of the guess, such as `3.1`, if it is among `ANSWERS`.
        guess: The letter that was written down before it; dots for none.
        because: Why, or where to see it; `ANSWERS` has a reason of its own.

    >>> reveal("b", "B", "Look at the left panel.")
    ✓ You guessed b, and b it is. Look at the left panel.
    >>> reveal("b", ..., "Look at the left panel.")
    ○ It is b. Look at the left panel. (You made no guess; a wrong one would have taught you more.)
    """
    check_choice(seen, [*"abc", *ANSWERS], "answer")
    seen, because = ANSWERS.get(seen, (seen, because))
    if is_untouched(guess):
        return Verdict("○", f"It is {seen}. {because}{NO_GUESS}")
    mine = str(guess).strip().lower()
    if mine == seen:
        return Verdict("✓", f"You guessed {mine}, and {seen} it is. {because}")
    return Verdict("✗", f"You guessed {mine}; it is {seen}. {because}")
