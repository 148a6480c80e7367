"""Recipes of the paper's competitors: a line for `vse-demo train --help`, and what differs from the paper's recipe.

Each keeps its own similarity and loss. Encoders, batches and schedule are the paper's, so methods can be compared.
"""

from typing import Any

COMPETITORS: dict[str, tuple[str, dict[str, Any]]] = {
    "scan-t2i": (
        "SCAN, words attend to image features (Lee et al., ECCV 2018)",
        {"interaction": "scan", "interaction_options": {"direction": "t2i"}, "projection": "linear"},
    ),
    "scan-i2t": (
        "SCAN, image features attend to words (Lee et al., ECCV 2018)",
        {"interaction": "scan", "interaction_options": {"direction": "i2t"}, "projection": "linear"},
    ),
    "caan": (
        "CAAN, each side pooled in view of the other (Zhang et al., CVPR 2020)",
        {"interaction": "caan", "projection": "linear"},
    ),
    "imram": (
        "IMRAM, attention in several steps with a memory (Chen et al., CVPR 2020)",
        {"interaction": "imram", "projection": "linear"},
    ),
    "dime-i2t": (
        "DIME, routed cells refine image features (Qu et al., SIGIR 2021)",
        {"interaction": "dime", "interaction_options": {"direction": "i2t"}},
    ),
    "dime-t2i": (
        "DIME, routed cells refine words (Qu et al., SIGIR 2021)",
        {"interaction": "dime", "interaction_options": {"direction": "t2i"}},
    ),
    "pvse": (
        "PVSE, several embeddings for each item (Song and Soleymani, CVPR 2019)",
        {"interaction": "pvse", "projection": "linear"},
    ),
    "dsrn": (
        "DSRN, relations of features, alone and with the whole image (Wen et al., TCSVT 2020)",
        {"pooling": "dsrn", "projection": "linear"},
    ),
    "fusion": (
        "a small cross-encoder in the manner of UNITER and OSCAR (Chen et al., Li et al., ECCV 2020)",
        {"interaction": "fusion"},
    ),
    "liwe": (
        "LIWE, words letter by letter (Wehrmann et al., ICCV 2019)",
        {"text": "liwe", "pooling": "mean", "projection": "linear"},
    ),
    "cvse": (
        "CVSE, concepts of the training captions (Wang et al., ECCV 2020)",
        {"interaction": "cvse", "projection": "linear"},
    ),
}


def competitor(name: str) -> dict[str, Any]:
    """The settings of a competitor; those with an interaction learn from the hardest negative, as their papers do."""
    return {"objective": "hard", **COMPETITORS[name][1]}
