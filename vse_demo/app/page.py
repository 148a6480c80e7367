"""The page of the demo: its layout and its events; what they do is in `actions`, what it looks like in `html`."""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from vse_demo.app.actions import NO_CAPTIONS, Actions, with_hints
from vse_demo.app.api import StrictBlocks, add_endpoints
from vse_demo.app.html import map as map_html
from vse_demo.app.html import results
from vse_demo.app.html.markup import read_text
from vse_demo.app.parts import NAMES, HtmlBlock, add_search, picture_field
from vse_demo.app.service import Service
from vse_demo.app.training_tab import add_training
from vse_demo.app.turns import Turns
from vse_demo.shipped import RUNS

TITLE = "Pictures and sentences in one space"
INTRODUCTION = f"""# {TITLE}
Type a sentence and get the nearest pictures, or give a picture and get the nearest sentences.
Choose a result to see why it matches. [For programs](docs)"""
EXAMPLES = [  # the last one is a caption of the gallery, so its results are ticked and crossed
    "a mountain lake",
    "a boat on the beach",
    "a man playing a guitar",
    "a crowd at a concert",
    "A black and tan dog takes a blue ball from a woman's hand.",
]
KEPT = 60, 900  # every 60 seconds, uploads and answers that are older than 900 seconds are deleted
NOW = "(...values) => [...values.slice(0, -1), performance.now()]"  # the time instead of the last input
REMEMBER = """(text, query, ...boxes) => {
    if (!text.trim()) return [query, 'sentence', ...boxes];
    vse.visit({ q: text }); vse.remember(text);
    return [text, 'sentence', text, text];
}"""  # what is asked, in the address and both search fields too, and that it is a sentence
EMPTIED = """field => {
    const mine = vse.emptied === true; vse.emptied = false;
    return [field, mine];
}"""  # an upload, and whether it was the page that took it away
RESTORE = read_text("restore.js")
THEME = gr.themes.Soft(
    primary_hue="blue", neutral_hue="slate", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
).set(  # nothing is fetched; all text has a contrast of 4.5 to what is behind it, which Gradio's own has not
    input_placeholder_color="*neutral_500", input_placeholder_color_dark="*neutral_300",
    block_title_text_color="*primary_700", block_label_text_color="*primary_700", link_text_color_dark="*secondary_400",
    link_text_color_visited="*secondary_700", link_text_color_visited_dark="*secondary_400",
    button_primary_background_fill="*primary_600", button_primary_background_fill_hover="*primary_700",
    body_text_color_subdued="*neutral_500", checkbox_label_background_fill_selected="*primary_600",
    checkbox_label_background_fill_selected_dark="*primary_600",
)  # fmt: skip
STYLE = read_text("style.css")
Cards = functools.partial(HtmlBlock, js_on_load=read_text("cards.js"))


def make_page(service: Service, examples: Sequence[str] = EXAMPLES) -> gr.Blocks:
    """Lay out the page and connect its events.

    Args:
        service: What computes the answers.
        examples: Sentences to try; the page begins with a search for the first one.
    """
    actions = Actions(service)
    with StrictBlocks(title=TITLE, analytics_enabled=False, delete_cache=KEPT) as blocks:
        with gr.Row(elem_id="head"):
            gr.Markdown(INTRODUCTION)
            with gr.Column(scale=0, min_width=240):
                models = [(NAMES.get(name, name), name) for name in service.sources]
                model = gr.Dropdown(models, value=service.default, label="Model", visible=len(models) > 1)
        with gr.Tabs() as tabs:
            with gr.Tab("Find pictures", id="pictures"):
                with gr.Column(elem_id="ask"):
                    sentence, search = add_search("A sentence", f"for example: {examples[0]}", "Search")
                    with gr.Accordion("Search by a picture, alone or with a sentence", open=False):
                        upload = picture_field("A picture to search by", 220)
                    chips = gr.Dataset(
                        components=[sentence], samples=[[each] for each in examples], label="Try one of these"
                    )
                found_images = Cards(elem_id="found-pictures")
                why_image = HtmlBlock(elem_classes="why")
            with gr.Tab("Find captions", id="captions", visible=bool(service.captions)) as captions_tab:
                with gr.Row(elem_id="give"):
                    with gr.Column(min_width=300):
                        image = picture_field("A picture", 200)
                        gr.Markdown("or choose one of these", elem_id="or")
                        samples = Cards(results.sample_cards(actions.samples, service.describe), elem_id="samples")
                    found_captions = Cards(NO_CAPTIONS, elem_id="found-captions", min_width=300)
                why_caption = HtmlBlock(elem_classes="why")
            with gr.Tab("The space", id="space") as space_tab:
                map_sentence, show = add_search("On the map", "Where does a sentence lie?", "Show")
                space = HtmlBlock(value=map_html.NOWHERE, html_template="", js_on_load=map_html.SCRIPT, elem_id="space")
            if set(RUNS) <= set(service.sources):
                with gr.Tab("How it learned", id="learned"):
                    add_training()
        all_tabs = [each for each in tabs.children if each.visible]
        large = HtmlBlock(js_on_load=read_text("large.js"), elem_id="large")
        tabs_of = " ".join(str(each.id) for each in all_tabs)
        datalist = f'<datalist id="asked-before" data-tabs="{tabs_of}"></datalist>'
        whole = HtmlBlock(datalist, js_on_load=read_text("page.js"), elem_id="whole")
        add_endpoints(service)

        # What the browser keeps, so that it is there when the server was started anew
        query = gr.Textbox(examples[0], visible=False)  # the sentence that was asked for last
        like = gr.Textbox("", visible=False)  # an image of the collection to search by
        sample = gr.Textbox("", visible=False)  # an image of the collection to find captions for
        count = gr.Number(results.COUNTS[0], visible=False)  # of results
        tab = gr.Textbox("", visible=False)  # the one that is open
        latest = gr.Textbox("sentence", visible=False)  # what was given last, a sentence or a picture
        mapped = gr.Textbox("", visible=False)  # the model whose map is on the page
        emptied = gr.Checkbox(False, visible=False)  # whether the page itself has taken an upload away
        wanted = gr.Textbox("", visible=False)  # an image of the collection to be shown in large
        asked = gr.Number(0, visible=False)  # when an event happens: NOW puts the time in its place
        turns = gr.State(Turns())

        def on(trigger: Callable[..., Any], function: Callable[..., Any], inputs: list[Any], outputs: list[Any]) -> Any:
            """Connect a function that takes its turn: requests run side by side, and the last one wins."""
            return trigger(
                with_hints(function), [*inputs, turns, asked], outputs, js=NOW, trigger_mode="multiple",
                show_progress_on=outputs[0], api_visibility="private",
            )  # fmt: skip

        def find(
            trigger: Callable[..., Any], field: gr.Textbox, action: Callable[..., Any] = actions.find_again
        ) -> Any:
            return on(trigger, action, [field, upload, like, count, model, mapped], [found_images, why_image, space])

        def taken(field: gr.Image) -> Any:
            """What happens when a picture has been read, or taken away; a file that is none changes nothing."""
            read = field.change(
                actions.take, [field, emptied], field, js=EMPTIED, show_progress_on=emptied, api_visibility="private"
            )
            read.failure(None, field, field, js="field => { vse.emptied = field !== null; return null; }")
            return read

        # A search, by a sentence or a picture
        boxes = [sentence, map_sentence]
        chips.click(None, chips, sentence, js=f"index => {json.dumps(list(examples))}[index]")
        for trigger, field in (
            (sentence.submit, sentence), (search.click, sentence), (chips.click, sentence),
            (map_sentence.submit, map_sentence), (show.click, map_sentence),
        ):  # fmt: skip
            trigger(None, [field, query, *boxes], [query, latest, *boxes], js=REMEMBER)
            find(trigger, field, actions.find)
        given = taken(upload).success(
            None, sentence, [like, query, map_sentence],
            js="text => { vse.visit({ like: '', q: text }); return ['', text, text]; }",
        )  # fmt: skip
        find(given.then, sentence)
        on(found_images.select, actions.choose_image, [upload, like, model], [why_image])
        of_captions, for_captions = [found_captions, why_caption, space], [image, sample, count, model, mapped]
        picked = samples.select(with_hints(actions.pick), None, [image, sample], api_visibility="private")
        on(picked.then, actions.find_captions, for_captions, of_captions)
        picked.then(None, sample, None, js="name => vse.visit({ picture: name })")
        chosen = taken(image).success(
            None, [image, sample], sample,
            js="(image, name) => { if (image) vse.visit({ picture: '' }); return image ? '' : name; }",
        )  # fmt: skip
        on(chosen.then, actions.find_captions, for_captions, of_captions)
        for trigger in (image.input, samples.select):
            trigger(None, None, latest, js="() => 'picture'")
        on(found_captions.select, actions.choose_caption, [image, sample, model], [why_caption])
        large.enlarge(  # which item is read when the request is made: Gradio would repeat the first of several events
            with_hints(actions.enlarge), wanted, large, js="() => vse.wanted()", trigger_mode="always_last",
            show_progress="hidden", api_visibility="private",
        )  # fmt: skip

        # Another model, another tab
        on_map = [latest, query, image, sample, model, mapped]
        model.input(None, model, None, js="name => vse.visit({ model: name })")
        find(model.input, query)
        on(model.input, actions.repeat_captions, for_captions, of_captions)
        on(model.input, actions.redraw_map, on_map, [space, mapped])
        on(space_tab.select, actions.draw_map, on_map, [space, mapped])
        on(captions_tab.select, actions.begin_captions, for_captions, of_captions)

        # The address says what is shown; it is read when the page is opened, on Back, and when the page goes somewhere
        settings: dict[str, Any] = {"count": results.COUNTS[0], "most": results.MOST}
        settings |= {"first": examples[0], "models": list(service.sources), "tabs": [each.id for each in all_tabs]}
        asked_now = [query, *boxes]
        fields = [*asked_now, like, count, model, tabs, tab, sample, latest]
        for trigger in (blocks.load, whole.restore):
            read = trigger(None, [upload, *asked_now], fields, js=RESTORE.replace("SETTINGS", json.dumps(settings)))
            find(read.then, query, actions.find_addressed)
            on(read.then, actions.open_captions, [tab, *for_captions], of_captions)
            on(read.then, actions.open_map, [tab, *on_map], [space, mapped])
    return blocks
