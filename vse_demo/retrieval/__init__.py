"""Search: images and captions as unit vectors, exact top-k, kept on disk between runs."""

from vse_demo.retrieval.exact import top_k
from vse_demo.retrieval.gallery import BATCH, FORMAT, Gallery, Hit, Report, read_models

__all__ = ["BATCH", "FORMAT", "Gallery", "Hit", "Report", "read_models", "top_k"]
