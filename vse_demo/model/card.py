"""The README of a saved model."""

import json
from collections.abc import Mapping
from typing import Any

from vse_demo.model.config import ModelConfig


def model_card(config: ModelConfig, metrics: Mapping[str, Any] | None, text: str) -> str:
    """A README for a saved model, with the front matter of the Hugging Face convention."""
    vision = "precomputed regions" if config.vision == "region" else f"{config.vision}, {config.backbone}"
    size = "" if config.vision == "region" else f" at {config.image_size} px"
    lines = [
        "---", "library_name: vse_demo", "pipeline_tag: feature-extraction", "tags: [image-text-retrieval, vse]", "---",
        "# Visual-semantic embedding", "",
        f"- pictures: {vision}{size}", f"- captions: {config.text}",
        f"- pooling: {config.pooling} {dict(config.pooling_options) or ''}".rstrip(),
        f"- joint space: {config.dim} dimensions", "",
        "```python", "from vse_demo import VSE", "", 'model = VSE.from_pretrained("this folder")',
        'model.similarity(["photo.jpg"], ["a dog on the beach"])', "```",
    ]  # fmt: skip
    if metrics:
        lines += ["", "## Measured", "", "```json", json.dumps(metrics, indent=2), "```"]
    if text:
        lines += ["", text.strip()]
    return "\n".join(lines) + "\n"
