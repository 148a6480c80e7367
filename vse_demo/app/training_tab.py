"""The tab that shows how the shipped models learned, and how many negatives AdOpt would take."""

import gradio as gr

from vse_demo.app.html import drawings
from vse_demo.app.parts import NAMES, HtmlBlock
from vse_demo.shipped import RUNS

TWO_PARTS = """Both models learned together, in two runs; the second began at step 1,266, at a high learning rate again.
The first 70 % of each weigh all negatives of a batch (K = 191). Then AdOpt joins in, with its K, and each model also
learns from what both say together: the loss is another one from there on."""
NEGATIVES = """### How many negatives?
AdOpt sets K, the number of negatives to learn from, by how aligned and how uniform the space is. The paper's equation
and the authors' code do not agree: move the sliders."""
BATCH = 128  # for the sliders of K


def add_training() -> None:
    """Add the curves of the shipped runs, and K by both formulas."""
    first = next(iter(RUNS))
    run = gr.Radio([(NAMES[name], name) for name in RUNS], value=first, label="Training of")
    curves = HtmlBlock(drawings.curves(RUNS[first]))
    run.change(lambda name: drawings.curves(RUNS[name]), run, curves, api_visibility="private")
    gr.Markdown(TWO_PARTS)
    gr.Markdown(NEGATIVES)
    with gr.Row():
        alignment = gr.Slider(0, 1, 0.4, step=0.01, label="Alignment: how near pairs are", min_width=280)
        uniformity = gr.Slider(0, 1.2, 1.0, step=0.01, label="Uniformity: how near all others are", min_width=280)
    planes = HtmlBlock(drawings.k_mark(0.4, 1.0, BATCH), html_template=drawings.k_planes(BATCH), elem_id="planes")
    # One listener for both sliders: with one each, the answer to an older move could come last and stay.
    gr.on(
        [alignment.change, uniformity.change], lambda a, u: drawings.k_mark(a, u, BATCH), [alignment, uniformity],
        planes, show_progress="hidden", trigger_mode="always_last", api_visibility="private",
    )  # fmt: skip
