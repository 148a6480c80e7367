"""Questions at the end of a lesson: every option says why it is right or wrong, and opens without a kernel or a script.

The questions themselves are the TOML files beside this module, one for each lesson.
"""

import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path

from vse_demo.utils.checks import check_choice

FOLDER = Path(__file__).parent
LETTERS = "abcdef"


@dataclass(frozen=True)
class Question:
    """A question, its options, and why each is right or wrong."""

    ask: str
    options: tuple[tuple[str, str], ...]  # what it says, and why it is right or wrong
    right: int  # the index of the right one


@dataclass(frozen=True)
class Quiz:
    """Questions that show themselves: unfolding in a browser, as plain text elsewhere."""

    questions: tuple[Question, ...]

    def __repr__(self) -> str:
        asked, answers = [], []
        for number, question in enumerate(self.questions, 1):
            asked.append(f"{number}. {question.ask}")
            asked += [f"   {letter}) {says}" for letter, (says, _) in zip(LETTERS, question.options, strict=False)]
            answers.append(f"{number}{LETTERS[question.right]}")
        return "\n".join([*asked, "", f"Right are: {', '.join(answers)}."])

    def _repr_html_(self) -> str:
        return "".join(_question_html(number, question) for number, question in enumerate(self.questions, 1))


def _question_html(number: int, question: Question) -> str:
    options = []
    for place, (says, why) in enumerate(question.options):
        mark, word = ("✓", "Right.") if place == question.right else ("✗", "No.")
        options.append(
            f"<details><summary>{LETTERS[place]}) {escape(says)}</summary>"
            f"<p><b>{mark} {word}</b> {escape(why)}</p></details>"
        )
    return f"<p><b>{number}.</b> {escape(question.ask)}</p>{''.join(options)}"


def quiz(lesson: str) -> Quiz:
    """The questions of a lesson, by the name of its notebook, such as `02_pooling`."""
    check_choice(lesson, sorted(path.stem for path in FOLDER.glob("*.toml")), "quiz")
    content = tomllib.loads((FOLDER / f"{lesson}.toml").read_text(encoding="utf-8"))
    return Quiz(
        tuple(
            Question(entry["ask"], tuple((says, why) for says, why in entry["options"]), LETTERS.index(entry["right"]))
            for entry in content["question"]
        )
    )
