"""Decoding images, with limits: a file or a PIL image -> upright RGB."""

import hashlib
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor, uint8

from vse_demo.utils.files import FileError

ImageFile = Path | zipfile.Path
ImageLike = Image.Image | ImageFile | str | bytes | Tensor | np.ndarray  # an array is the regions (N, C) of one image
Images = Sequence[ImageLike] | np.ndarray
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"}
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")  # Pillow knows more, and runs Ghostscript for some
MAX_BYTES = 500_000_000  # of a file; larger ones are refused unopened
MAX_PIXELS = 80_000_000  # larger images are refused: decoding one takes up to 700 MB
MAX_SIDE = 2048  # images with more than its square are shrunk to it: no model looks closer than 512


def read_image(file: "ImageFile | _Bytes") -> Image.Image:
    """Decode one image: upright, RGB, its first frame if it moves; a very large one smaller.

    Raises:
        FileError: If it cannot be read as an image, or is too large.
    """
    try:
        _check_bytes(file)
        stream = file.open("rb")
    except FileError:
        raise
    except Exception as error:  # of the disk, or of an archive, which can be broken in many ways
        raise _unreadable(file.name, error) from error
    with stream:
        return decode_image(stream, file.name)


def decode_image(stream: IO[bytes], name: str, smallest: int = 0) -> Image.Image:
    """Decode the image in a file that is open; see `read_image`.

    Args:
        stream: Of the file.
        name: For messages.
        smallest: A JPEG may be decoded at a half, a quarter or an eighth of its size, as long as no side is shorter
            than this; 0 for its full size. That leaves out most of the work on large photographs.

    Raises:
        FileError: If it cannot be read as an image, or is too large.
    """
    try:
        with Image.open(stream, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise FileError(f"{name}: {image.width} × {image.height} pixels are more than this program reads")
            if smallest:
                image.draft(None, (smallest, smallest))
            if image.width * image.height > MAX_SIDE**2:
                gap = None if image.mode.startswith("I;16") else 2.0  # Pillow reduces all modes but these
                image.thumbnail((MAX_SIDE, MAX_SIDE), reducing_gap=gap)  # before anything else copies it
            return to_rgb(ImageOps.exif_transpose(image))
    except FileError:
        raise
    except UnidentifiedImageError as error:
        raise FileError(f"{name} is not an image that this program reads ({', '.join(FORMATS)})") from error
    except Image.DecompressionBombError as error:
        raise FileError(f"{name}: its pixels are more than this program reads") from error
    except Exception as error:  # decoders fail in many ways on broken files: all mean the same here
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> FileError:
    reason = getattr(error, "strerror", None) or error  # without the path, which is nobody's business
    return FileError(f"{name} cannot be read as an image: {reason}")


def _check_bytes(file: "ImageFile | _Bytes") -> None:
    """Refuse what is no image by its size alone, a pipe or a zip bomb among them, before it is opened."""
    if isinstance(file, _Bytes):
        size = len(file.content)
    else:
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
        image: A PIL image, turned as its EXIF data say, the path of a file, the bytes of one, or a tensor (3, H, W), as
            torchvision has them: uint8, or float in [0, 1].

    Raises:
        FileError: If the file cannot be read as an image.
        TypeError: If it is something else.
        ValueError: If a tensor is of another shape, or its values are no colours.
    """
    if isinstance(image, Image.Image):
        return to_rgb(ImageOps.exif_transpose(image))
    if isinstance(image, str | Path | zipfile.Path):
        return read_image(Path(image) if isinstance(image, str) else image)
    if isinstance(image, np.ndarray):
        raise TypeError("this model takes images or paths of images, not arrays: convert with PIL.Image.fromarray")
    if isinstance(image, bytes | bytearray):
        return read_image(_Bytes(bytes(image)))
    if isinstance(image, Tensor):
        return _from_tensor(image)
    raise TypeError(f"an image must be a PIL image, a path, bytes or a tensor, not {type(image).__name__}")


class _Bytes:
    """The bytes of a file, for `read_image`."""

    name = "the image"

    def __init__(self, content: bytes):
        self.content = content

    def open(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.content)


def _from_tensor(pixels: Tensor) -> Image.Image:
    if pixels.dim() != 3 or pixels.shape[0] != 3 or 0 in pixels.shape:
        raise ValueError(f"a tensor of an image must be (3, height, width), not {tuple(pixels.shape)}")
    if pixels.is_floating_point():
        if not bool(((pixels >= 0) & (pixels <= 1)).all()):
            raise ValueError("a float tensor of an image must hold values from 0 to 1, before any normalisation")
        pixels = (pixels * 255).round()
    elif pixels.dtype != uint8:
        raise ValueError(f"a tensor of an image must be uint8 or float, not {pixels.dtype}")
    return Image.fromarray(pixels.to(uint8).permute(1, 2, 0).cpu().numpy())


def _is_one_tensor(images: object) -> bool:
    return isinstance(images, Tensor) and images.dim() == 3


def as_images(images: Images | ImageLike) -> Images:
    """A list of images, of which there may be one: a single image, path or array of regions (N, C) is put in a list."""
    single = isinstance(images, str | bytes | bytearray | Path | zipfile.Path | Image.Image)
    if single or (isinstance(images, np.ndarray) and images.ndim == 2) or _is_one_tensor(images):
        return [images]  # type: ignore[list-item]
    return images  # type: ignore[return-value]
