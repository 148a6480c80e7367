"""What the lessons ask of their readers: checked answers, kept guesses, questions with reasons, figures to be moved."""

from vse_demo.teaching.checks import EXERCISES, Verdict, Wrong, check
from vse_demo.teaching.guesses import reveal
from vse_demo.teaching.questions import Question, Quiz, quiz
from vse_demo.teaching.sliders import Sliders, sliders

__all__ = ["EXERCISES", "Question", "Quiz", "Sliders", "Verdict", "Wrong", "check", "quiz", "reveal", "sliders"]
