"""Guesses: written down before a figure, compared with it afterwards."""

from vse_demo.teaching.checks import Verdict, is_untouched


def reveal(seen: str, guess: object, because: str) -> Verdict:
    """Say what was seen beside what was guessed.

    Args:
        seen: The letter of what the figure shows.
        guess: The letter that was written down before it; dots for none.
        because: Why, or where to see it.

    >>> reveal("b", "B", "Look at the left panel.")
    ✓ You guessed b, and b it is. Look at the left panel.
    >>> reveal("b", ..., "Look at the left panel.")
    ○ It is b. Look at the left panel. (You made no guess; a wrong one would have taught you more.)
    """
    if is_untouched(guess):
        return Verdict("○", f"It is {seen}. {because} (You made no guess; a wrong one would have taught you more.)")
    mine = str(guess).strip().lower()
    if mine == seen:
        return Verdict("✓", f"You guessed {mine}, and {seen} it is. {because}")
    return Verdict("✗", f"You guessed {mine}; it is {seen}. {because}")
