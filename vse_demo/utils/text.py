"""Text that can be printed anywhere."""

import re


def sanitize_text(text: str) -> str:
    """Text that can be printed anywhere: no control characters, and halves of signs (lone surrogates) spelt out."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text).encode("utf-8", "backslashreplace").decode("utf-8")
