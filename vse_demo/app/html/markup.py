"""Text, numbers and images as parts of a web page."""

import base64
import html
import io

from PIL import Image


def escape_html(text: str) -> str:
    """Text that can be nothing but text, in an attribute and in the page's template language."""
    return "".join(f"&#{ord(sign)};" if sign in "${}`\\" else sign for sign in html.escape(text))


def data_url(image: Image.Image, size: int, quality: int = 80) -> str:
    """A picture, no larger than this, as a data address."""
    image = image.copy()
    image.thumbnail((size, size))
    stream = io.BytesIO()
    if image.mode == "RGBA":
        image.save(stream, "PNG")
        return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
    image.convert("RGB").save(stream, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def number_text(value: float) -> str:
    """Two digits, and a minus that is as wide as a digit."""
    return f"{value:.2f}".replace("-", "−")
