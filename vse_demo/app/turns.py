"""Whose answer is shown: requests of a visitor run side by side and can end in any order."""

import threading

EXPLAINS = {"images": "why image", "captions": "why caption"}  # a search, and what explains one of its cards


class Turns:
    """What one visitor has asked for last: an answer that a later request has overtaken is not shown.

    The page says when each was asked (`asked`, in milliseconds of its own clock). A search is overtaken by a later
    search that has begun. An explanation is overtaken by a later one that has begun on the same cards, and by a search
    that has replaced the cards it was asked on.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun: dict[str, float] = {}
        self.shown: dict[str, float] = {}

    def __deepcopy__(self, memo: object) -> "Turns":
        return Turns()  # Gradio copies the first value of a state for each visitor

    def begin(self, what: str, asked: float) -> None:
        with self.lock:
            self.begun[what] = max(asked, self.begun.get(what, 0))

    def show(self, what: str, asked: float) -> bool:
        """Whether the answer to a search can be shown; if so, earlier searches are out of date."""
        with self.lock:
            if asked < self.begun.get(what, 0):
                return False
            if asked > self.shown.get(what, 0):
                self.begun.pop(EXPLAINS.get(what, ""), None)  # what was begun on the cards that it replaces
            self.shown[what] = asked
            return True

    def is_current(self, what: str, asked: float, search: str, searched: float) -> bool:
        """Whether an explanation can be shown that was asked on the cards of a search."""
        with self.lock:
            return asked >= self.begun.get(what, 0) and searched >= self.shown.get(search, 0)
