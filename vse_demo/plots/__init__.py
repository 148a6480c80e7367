"""Figures for lessons, app and papers: arrays in, matplotlib Axes out; no model is needed.

Every function draws on `ax`, or on a new figure if it is None, and returns the Axes. Colours are Okabe and Ito's,
which most people can tell apart: blue is for images, orange for texts, green for right, vermilion for wrong.
"""

from vse_demo.plots.answers import plot_heat_map, plot_retrieved_captions, plot_retrieved_images, plot_word_parts
from vse_demo.plots.measures import plot_comparison, plot_curves, plot_differences, plot_time_parts, plot_trade_off
from vse_demo.plots.method import plot_k_plane, plot_matrix, plot_pipeline, plot_rank_weights, plot_worked_pipeline
from vse_demo.plots.spaces import plot_circle, plot_space
from vse_demo.plots.style import HELPS_OR_HURTS, IMAGE, PALETTE, RIGHT, TEXT, WRONG, name_points

__all__ = [
    "HELPS_OR_HURTS",
    "IMAGE",
    "PALETTE",
    "RIGHT",
    "TEXT",
    "WRONG",
    "name_points",
    "plot_circle",
    "plot_comparison",
    "plot_curves",
    "plot_differences",
    "plot_heat_map",
    "plot_k_plane",
    "plot_matrix",
    "plot_pipeline",
    "plot_rank_weights",
    "plot_retrieved_captions",
    "plot_retrieved_images",
    "plot_space",
    "plot_time_parts",
    "plot_trade_off",
    "plot_word_parts",
    "plot_worked_pipeline",
]
