"""What is on disk -> images, captions and splits."""

from vse_demo.data.download import DATASETS, FILES, REPOSITORY, download
from vse_demo.data.images import (
    FORMATS,
    IMAGE_SUFFIXES,
    MAX_BYTES,
    MAX_PIXELS,
    MAX_SIDE,
    ImageFile,
    ImageLike,
    Images,
    as_image,
    as_images,
    content_digest,
    decode_image,
    read_image,
    to_rgb,
)
from vse_demo.data.layouts import CaptionedImages, Dataset, first_images, merge_duplicates, open_dataset, read_captions
from vse_demo.data.transforms import random_view, resize_images, to_pixels
from vse_demo.data.typos import misspell, with_typo, with_typos

__all__ = [
    "DATASETS",
    "FILES",
    "FORMATS",
    "IMAGE_SUFFIXES",
    "MAX_BYTES",
    "MAX_PIXELS",
    "MAX_SIDE",
    "REPOSITORY",
    "CaptionedImages",
    "Dataset",
    "ImageFile",
    "ImageLike",
    "Images",
    "as_image",
    "as_images",
    "content_digest",
    "decode_image",
    "download",
    "first_images",
    "merge_duplicates",
    "misspell",
    "open_dataset",
    "random_view",
    "read_captions",
    "read_image",
    "resize_images",
    "to_pixels",
    "to_rgb",
    "with_typo",
    "with_typos",
]
