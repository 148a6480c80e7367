"""Decoding images, with limits: a file or a PIL image -> upright RGB."""

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vse_demo.utils.files import FileError

ImageFile = Path | zipfile.Path
ImageLike = Image.Image | ImageFile | str | np.ndarray  # an array is the regions (N, C) of one image
Images = Sequence[ImageLike] | np.ndarray
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"}
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")  # Pillow knows more, and runs Ghostscript for some
MAX_BYTES = 500_000_000  # of a file; larger ones are refused unopened
MAX_PIXELS = 80_000_000  # larger images are refused: decoding one takes up to 700 MB
MAX_SIDE = 2048  # images with more than its square are shrunk to it: no model looks closer than 512


def read_image(file: ImageFile) -> Image.Image:
    """Decode one image: upright, RGB, its first frame if it moves; a very large one smaller.

    Raises:
        FileError: If it cannot be read as an image, or is too large.
    """
    try:
        _check_bytes(file)
        with file.open("rb") as stream, Image.open(stream, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise FileError(f"{file.name}: {image.width} × {image.height} pixels are more than this program reads")
            if image.width * image.height > MAX_SIDE**2:
                gap = None if image.mode.startswith("I;16") else 2.0  # Pillow reduces all modes but these
                image.thumbnail((MAX_SIDE, MAX_SIDE), reducing_gap=gap)  # before anything else copies it
            return to_rgb(ImageOps.exif_transpose(image))
    except FileError:
        raise
    except UnidentifiedImageError as error:
        raise FileError(f"{file.name} is not an image that this program reads ({', '.join(FORMATS)})") from error
    except Image.DecompressionBombError as error:
        raise FileError(f"{file.name}: its pixels are more than this program reads") from error
    except Exception as error:  # decoders fail in many ways on broken files: all mean the same here
        reason = getattr(error, "strerror", None) or error  # without the path, which is nobody's business
        raise FileError(f"{file.name} cannot be read as an image: {reason}") from error


def _check_bytes(file: ImageFile) -> None:
    """Refuse what is no image by its size alone, a pipe or a zip bomb among them, before it is opened."""
    size = file.stat().st_size if isinstance(file, Path) else file.root.getinfo(file.at).file_size
    if size == 0:
        raise FileError(f"{file.name} is empty")
    if size > MAX_BYTES:
        raise FileError(f"{file.name}: {size:,} bytes are more than this program reads")


def to_rgb(image: Image.Image) -> Image.Image:
    """What a person would see: transparent parts white, deep greys scaled to 8 bits instead of cut off."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith(("I", "F")):
        values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
        top = next((top for top in (1.0, 255.0, 65535.0) if values.max(initial=0) <= top), values.max(initial=0))
        if image.mode.startswith("I;16"):
            top = 65535.0
        image = Image.fromarray((values * (255 / top)).clip(0, 255).astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def content_digest(item: ImageFile | np.ndarray) -> str:
    """A fingerprint of an image file's bytes, or of a precomputed row."""
    if isinstance(item, np.ndarray):
        return hashlib.blake2b(np.ascontiguousarray(item).data, digest_size=16).hexdigest()
    try:
        _check_bytes(item)
        with item.open("rb") as stream:  # read in pieces
            return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type]
    except FileError:
        raise
    except Exception as error:  # of the disk, or of an archive, which can be broken in many ways
        raise FileError(f"{item.name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def as_image(image: ImageLike) -> Image.Image:
    """Read or convert one image: upright, RGB.

    Args:
        image: A PIL image, turned as its EXIF data say, or the path of a file.

    Raises:
        FileError: If the file cannot be read as an image.
        TypeError: If it is something else.
    """
    if isinstance(image, Image.Image):
        return to_rgb(ImageOps.exif_transpose(image))
    if isinstance(image, str | Path | zipfile.Path):
        return read_image(Path(image) if isinstance(image, str) else image)
    if isinstance(image, np.ndarray):
        raise TypeError("this model takes images or paths of images, not arrays: convert with PIL.Image.fromarray")
    if isinstance(image, bytes | bytearray):
        raise TypeError("an image must be a PIL image or a path, not bytes: PIL.Image.open(io.BytesIO(…)) opens them")
    raise TypeError(f"an image must be a PIL image or a path, not {type(image).__name__}")


def as_images(images: Images | ImageLike) -> Images:
    """A list of images, of which there may be one: a single image, path or array of regions (N, C) is put in a list."""
    single = isinstance(images, str | bytes | bytearray | Path | zipfile.Path | Image.Image)
    if single or (isinstance(images, np.ndarray) and images.ndim == 2):
        return [images]  # type: ignore[list-item]
    return images  # type: ignore[return-value]
