"""Settings that carry their own help: fields of a config dataclass, with the text that the command line shows."""

from dataclasses import field
from typing import Any


def setting(default: Any, text: str) -> Any:
    """A field of a config, with its help in `metadata["help"]`.

    Args:
        default: its value if none is given; a type, as in `dict`, is called for a new one each time.
        text: unit, choices and meaning, in a few words.

    Example:
        >>> from dataclasses import dataclass, fields
        >>> @dataclass
        ... class Recipe:
        ...     epochs: int = setting(25, "how often every caption is shown")
        >>> Recipe().epochs, fields(Recipe)[0].metadata["help"]
        (25, 'how often every caption is shown')
    """
    metadata = {"help": text}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)
