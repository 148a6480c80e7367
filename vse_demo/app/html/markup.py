"""Text, numbers and images as parts of HTML; the templates, which escape whatever is put into them."""

import base64
import html
import io
import urllib.parse
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from vse_demo.utils.text import sanitize_text

HERE = Path(__file__).parent


def escape_html(text: str) -> str:
    """Escape text for HTML, for attributes and for Gradio's templates, which would run `${…}`."""
    return "".join(f"&#{ord(sign)};" if sign in "${}`\\" else sign for sign in html.escape(text))


def _escape_all(value: Any) -> Any:
    """What a template does with every value: as autoescaping does, and for Gradio's templates too."""
    return value if isinstance(value, Markup) else Markup(escape_html(str(value)))


def pack_text(text: str) -> str:
    """Write any text, names of files that are no UTF-8 among them, in letters that every attribute can hold.

    >>> unpack_text(pack_text('a "dog" ü.jpg'))
    'a "dog" ü.jpg'
    """
    return urllib.parse.quote(text.encode("utf-8", "surrogatepass"))


def unpack_text(packed: str) -> str:
    """Read what `pack_text` wrote."""
    return urllib.parse.unquote_to_bytes(packed).decode("utf-8", "surrogatepass")


def picture_url(name: str, size: int | None = None) -> str:
    """The address of a picture of the collection, beside the page: at most so large, or the file as it is."""
    return f"pictures/{pack_text(name)}?{f'size={size}' if size else 'file'}"


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


def read_text(name: str) -> str:
    """A style or a script that lies beside this module."""
    return (HERE / name).read_text(encoding="utf-8")


def render(template: str, **values: Any) -> str:
    """Fill a template of `templates/`; whatever is put in is text, unless it is `Markup`."""
    return TEMPLATES.get_template(template).render(values)


TEMPLATES = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, finalize=_escape_all, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
TEMPLATES.filters |= {"packed": pack_text, "number": number_text, "plain": sanitize_text}
TEMPLATES.globals |= {"picture_url": picture_url}
