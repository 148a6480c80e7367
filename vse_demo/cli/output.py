"""What the verbs print."""

from collections.abc import Mapping
from typing import Any


def print_metrics(metrics: Mapping[str, Any]) -> None:
    """Metrics as a table for people."""
    print(f"{metrics['images']} images, {metrics['captions']} captions")
    print("                   R@1    R@5   R@10   median rank")
    for way, name in (("i2t", "image → text"), ("t2i", "text → image")):
        row = metrics[way]
        print(f"  {name:14} {row['r1']:6.1f} {row['r5']:6.1f} {row['r10']:6.1f} {row['medr']:9.1f}")
    print(f"  RSUM           {metrics['rsum']:6.1f}")
