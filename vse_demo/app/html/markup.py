"""Text, numbers and images as parts of HTML."""

import base64
import html
import io
import urllib.parse

from PIL import Image


def escape_html(text: str) -> str:
    """Escape text for HTML, for attributes and for Gradio's templates, which would run `${…}`."""
    return "".join(f"&#{ord(sign)};" if sign in "${}`\\" else sign for sign in html.escape(text))


def pack_text(text: str) -> str:
    """Write any text, names of files that are no UTF-8 among them, in letters that every attribute can hold.

    >>> unpack_text(pack_text('a "dog" ü.jpg'))
    'a "dog" ü.jpg'
    """
    return urllib.parse.quote(text.encode("utf-8", "surrogatepass"))


def unpack_text(packed: str) -> str:
    """Read what `pack_text` wrote."""
    return urllib.parse.unquote_to_bytes(packed).decode("utf-8", "surrogatepass")


def data_url(image: Image.Image, size: int, quality: int = 80) -> str:
    """Turn an image into a `data:` address.

    Args:
        image: PNG if it has transparent parts (RGBA), JPEG otherwise.
        size: It is shrunk to so many pixels on its longer side.
        quality: Of the JPEG.
    """
    image = image.copy()
    image.thumbnail((size, size))
    stream = io.BytesIO()
    if image.mode == "RGBA":
        image.save(stream, "PNG")
        return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
    image.convert("RGB").save(stream, "JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def number_text(value: float) -> str:
    """Write a number with two digits, and with a minus that is as wide as a digit."""
    return f"{value:.2f}".replace("-", "−")
