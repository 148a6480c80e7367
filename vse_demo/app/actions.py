"""The functions behind the page: from its fields to what they show."""

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
from PIL import Image

from vse_demo.app.guard import as_sentence
from vse_demo.app.html import map as map_html
from vse_demo.app.html import reasons, results
from vse_demo.app.html.markup import unpack_text
from vse_demo.app.html.results import Asked, Note
from vse_demo.app.queries import ImageQuery, Query, TextQuery, check_sentence
from vse_demo.app.rows import caption_row, image_row
from vse_demo.app.service import Photo, Service
from vse_demo.app.turns import Turns
from vse_demo.data.images import read_image
from vse_demo.utils.files import FileError
from vse_demo.utils.text import sanitize_text

NO_IMAGES, NO_CAPTIONS = (
    f'<p class="head"><small>The nearest {kind} appear here.</small></p>' for kind in ("pictures", "captions")
)
IMAGE_LABEL = "your picture"
PROGRESS = gr.Progress()
Upload = Image.Image | FileError | None  # what a visitor gives; an error if it is no image


class Actions:
    """What the page does with one service. Each method says what it returns, in the order of the page's parts."""

    def __init__(self, service: Service):
        self.service, self.samples = service, service.samples()
        self.first = next(iter(self.samples), "")  # an image to begin with
        self.map = functools.lru_cache(self._map)

    def read(self, name: str) -> Image.Image:
        return read_image(self.service.file(name))

    def wait(self, model: str, progress: gr.Progress) -> None:
        """Wait until the collection is there, and show how far it is."""
        began: tuple[float, int] | None = None
        for done, total in self.service.progress(model):
            if done and (began is None or done < began[1]):  # files are looked at first, then images encoded
                began = time.monotonic(), done
            left = time_left(began, done, total)
            progress((done, total) if total else None, desc=f"Getting to know the pictures{left}", unit="pictures")

    def find(
        self, sentence: str, upload: Upload, like: str, count: float, model: str, mapped: str, turns: Turns,
        asked: float, progress: gr.Progress = PROGRESS,
    ) -> Iterator[Any]:  # fmt: skip
        """-> images, why the first one matches, the query's mark on the map; the images first."""
        like = self.known(like)
        picture = self.read(like) if like else given(upload)
        sentence = check_sentence(sentence) if picture is None or sentence.strip() else ""
        turns.begin("images", asked)
        self.wait(model, progress)
        query = self.service.ask(sentence, picture, model)
        number = within(count)
        found = self.service.find_images(query, number)
        about = Asked(sentence, like, picture is not None and not like, number, asked)
        rows = [image_row(self.service, each) for each in found]
        far = bool(self.service.is_far(query, found))
        cards = results.image_cards(
            about, found, self.service.describe, rows, self.notes(sentence, model), self.service.count(model),
            far, self.left_out(),
        )  # fmt: skip
        if not turns.show("images", asked):
            return
        yield cards, gr.skip(), gr.skip()
        why = self.explain(found[0].item, query, asked) if found and not far else ""
        mark = self.mark(query, sentence or IMAGE_LABEL) if mapped == model else gr.skip()
        current = turns.is_current("why image", asked, "images", asked)
        yield gr.skip(), why if current else gr.skip(), mark if turns.show("images", asked) else gr.skip()

    def find_again(
        self, sentence: str, upload: Upload, like: str, count: float, model: str, mapped: str, turns: Turns,
        asked: float, progress: gr.Progress = PROGRESS,
    ) -> Iterator[Any]:  # fmt: skip
        """The same after something else than the sentence changed; no results if nothing is left to search by."""
        if upload is not None or like or sentence.strip():
            yield from self.find(sentence, upload, like, count, model, mapped, turns, asked, progress)
            return
        turns.begin("images", asked)
        if turns.show("images", asked):
            yield NO_IMAGES, "", gr.skip()

    def find_addressed(
        self, sentence: str, upload: Upload, like: str, count: float, model: str, mapped: str, turns: Turns,
        asked: float, progress: gr.Progress = PROGRESS,
    ) -> Iterator[Any]:  # fmt: skip
        """The same for what the address asks; what is wrong with it stands where its results would be."""
        turns.begin("images", asked)
        answered = False
        try:
            for answer in self.find_again(sentence, upload, like, count, model, mapped, turns, asked, progress):
                answered = True
                yield answer
        except (ValueError, FileNotFoundError) as error:
            if not answered and turns.show("images", asked):
                yield results.refusal(str(error), like), "", gr.skip()
            raise

    def left_out(self) -> list[str]:
        """What is to be said of the files of the collection."""
        report = self.service.found()
        said = list(report.broken.values())
        if report.unlisted:
            said.append(f"{report.unlisted:,} pictures are not named in the caption file; they are found all the same")
        return [sanitize_text(each) for each in said]

    def notes(self, sentence: str, model: str) -> list[Note]:
        """What is to be said of a sentence: that it is too long, words that the model does not know, and what may have
        been meant."""
        read, notes = self.service.words_read(sentence, model), list[Note]()
        if read is not None:
            notes.append(Note(f"Only the first {read} words of this sentence are read: models read no more."))
        lexicon = self.service.lexicon(model)
        unknown = lexicon.unknown(sentence) if lexicon else []
        if unknown and lexicon is not None:
            words = ", ".join(f"“{word}”" for word in unknown[:5])
            text = f"This model does not know {'the word' if len(unknown) == 1 else 'the words'} {words}."
            notes.append(Note(text, lexicon.correct(sentence)))
        return notes

    def choose_image(
        self, upload: Upload, like: str, model: str, turns: Turns, asked: float, event: gr.SelectData
    ) -> Any:
        """-> why the image of this card matches what it was found by."""
        item, sentence, searched = read_choice(event)
        turns.begin("why image", asked)
        like = self.known(like)
        picture = self.read(like) if like else given(upload)
        why = self.explain(item, self.service.ask(sentence, picture, model), searched)
        return why if turns.is_current("why image", asked, "images", searched) else gr.skip()

    def find_captions(
        self, upload: Upload, sample: str, count: float, model: str, mapped: str, turns: Turns, asked: float,
        progress: gr.Progress = PROGRESS,
    ) -> Iterator[Any]:  # fmt: skip
        """-> captions, why the first one matches, the image's mark on the map; the captions first."""
        turns.begin("captions", asked)
        image = self.image_of(upload, sample)
        if image is None:
            yield (NO_CAPTIONS, "", gr.skip()) if turns.show("captions", asked) else gr.skip()
            return
        self.wait(model, progress)
        query = self.service.encode_image(image, model)
        number = within(count)
        found = self.service.find_captions(query, number)
        far = bool(self.service.is_far(query, found, "i2t"))
        rows = [caption_row(self.service, each) for each in found]
        cards = results.caption_cards(found, Asked(count=number, at=asked), rows, far)
        if not turns.show("captions", asked):
            return
        yield cards, gr.skip(), gr.skip()
        why = self.explain_caption(query, found[0].item, asked) if found and not far else self.about(query, asked)
        mark = self.mark(query, IMAGE_LABEL) if mapped == model else gr.skip()
        current = turns.is_current("why caption", asked, "captions", asked)
        yield gr.skip(), why if current else gr.skip(), mark if turns.show("captions", asked) else gr.skip()

    def choose_caption(
        self, upload: Upload, sample: str, model: str, turns: Turns, asked: float, event: gr.SelectData
    ) -> Any:
        """-> why the caption of this card matches the image."""
        image = self.image_of(upload, sample or self.first)
        if image is None:
            return ""
        caption, _, searched = read_choice(event)
        turns.begin("why caption", asked)
        why = self.explain_caption(self.service.encode_image(image, model), caption, searched)
        return why if turns.is_current("why caption", asked, "captions", searched) else gr.skip()

    def begin_captions(
        self, upload: Upload, sample: str, count: float, model: str, mapped: str, turns: Turns, asked: float,
        progress: gr.Progress = PROGRESS,
    ) -> Iterator[Any]:  # fmt: skip
        """The same when the tab is opened, for one of the collection's images if none was given; only once."""
        if "captions" not in turns.begun:
            yield from self.find_captions(upload, sample or self.first, count, model, mapped, turns, asked, progress)

    def repeat_captions(
        self, upload: Upload, sample: str, count: float, model: str, mapped: str, turns: Turns, asked: float,
        progress: gr.Progress = PROGRESS,
    ) -> Iterator[Any]:  # fmt: skip
        """The same by another model, if there are captions on the page or on their way."""
        if "captions" in turns.begun:
            yield from self.find_captions(upload, sample or self.first, count, model, mapped, turns, asked, progress)

    def image_of(self, upload: Upload, name: str) -> Image.Image | None:
        """The image that was given: an upload, or one of the collection by its name."""
        image = given(upload)
        return self.read(self.known(name)) if image is None and name else image

    def explain(self, name: str, query: Query, searched: float) -> str:
        """Why an image of the collection matches a query; only what it is, if the model gives no reasons."""
        photo = self.service.photo(name)
        if not self.service.gives_reasons(query.model):
            return reasons.only_about(photo, searched)
        image = self.service.encode_image(self.read(name), query.model)
        usual = self.service.usual_score(query.model) if isinstance(query, TextQuery) else None
        return reasons.attribution(image.image, self.service.explain(image, query), usual, photo, searched)

    def explain_caption(self, image: ImageQuery, caption: str, searched: float) -> str:
        """Why a caption matches an image, and what that is if it is of the collection."""
        if not self.service.gives_reasons(image.model):
            return self.about(image, searched)
        why = self.service.explain(image, self.service.encode_text(caption, image.model))
        photo = self.photo_of(image)
        return reasons.attribution(image.image, why, self.service.usual_score(image.model), photo, searched)

    def about(self, image: ImageQuery, searched: float) -> str:
        """What an image is, if it is of the collection: its credit is there even if no caption is close."""
        return reasons.only_about(self.photo_of(image), searched)

    def photo_of(self, image: ImageQuery) -> Photo | None:
        own = self.service.recognise(image)
        return None if own is None else self.service.photo(own.name)

    def enlarge(self, packed: str) -> Any:
        """-> an image of the collection in large, if the page still wants one."""
        if not packed:
            return gr.skip()
        name = unpack_text(packed)
        return results.large_view(self.service.photo(name), self.service.describe(name))

    def pick(self, event: gr.SelectData) -> tuple[None, str]:
        """-> no upload, and the name of an image of the collection, chosen by its thumbnail."""
        return None, read_choice(event)[0]

    def open_captions(
        self, tab: str, upload: Upload, sample: str, count: float, model: str, mapped: str, turns: Turns, asked: float,
        progress: gr.Progress = PROGRESS,
    ) -> Iterator[Any]:  # fmt: skip
        """-> the captions that the address asks for, if it does."""
        if tab == "captions":
            yield from self.find_captions(upload, sample or self.first, count, model, mapped, turns, asked, progress)

    def open_map(self, tab: str, *arguments: Any) -> tuple[Any, Any]:
        """-> the map that the address asks for, if it does."""
        return self.draw_map(*arguments) if tab == "space" else (gr.skip(), gr.skip())

    def take(self, upload: Upload, emptied: bool) -> Any:
        """-> an upload that browsers do not show, such as TIFF, in a form that they do.

        Raises:
            gr.Error: It is no image, which is said, or the page itself has emptied the field because of that: nothing
                more is to be done.
        """
        if isinstance(upload, FileError):
            gr.Warning(as_sentence(upload), duration=8)
        if isinstance(upload, FileError) or emptied:
            raise gr.Error("", visible=False, print_exception=False)
        return upload if upload is not None and not upload.info.get("shown", True) else gr.skip()

    def known(self, name: str) -> str:
        """The name of an image of the collection as an address gives it; nothing if none is named."""
        if name and name not in self.service.files and unpack_text(name) in self.service.files:
            return unpack_text(name)  # it cannot be written in Unicode, so that the page gives it packed
        return self.service.photo(name).name if name else ""

    def draw_map(
        self, latest: str, sentence: str, upload: Upload, sample: str, model: str, mapped: str, turns: Turns,
        asked: float,
        progress: gr.Progress = PROGRESS,
    ) -> tuple[Any, Any]:  # fmt: skip
        """-> the map with the latest query, if it is not on the page already, and whose map it is."""
        turns.begin("map", asked)
        if mapped == model:
            return gr.skip(), gr.skip()
        self.wait(model, progress)
        progress(None, desc="Drawing the map")
        template = self.map(model)
        image = self.image_of(upload, sample) if latest == "picture" else None
        if image is not None:
            value = self.mark(self.service.encode_image(image, model), IMAGE_LABEL)
        elif sentence.strip():
            value = self.mark(self.service.encode_text(sentence, model), sentence)
        else:
            value = map_html.NOWHERE
        return (gr.HTML(html_template=template, value=value), model) if turns.show("map", asked) else (gr.skip(),) * 2

    def redraw_map(
        self, latest: str, sentence: str, upload: Upload, sample: str, model: str, mapped: str, turns: Turns,
        asked: float,
        progress: gr.Progress = PROGRESS,
    ) -> tuple[Any, Any]:  # fmt: skip
        """The same for another model, if there is a map on the page or on its way."""
        if not mapped and "map" not in turns.begun:
            return gr.skip(), gr.skip()
        return self.draw_map(latest, sentence, upload, sample, model, mapped, turns, asked, progress)

    def mark(self, query: Query, label: str) -> dict[str, Any]:
        return map_html.mark(self.service.place(query), self.service.map(query.model), label)

    def _map(self, model: str) -> str:
        shown, places = self.service.sample(model).entries, self.service.map(model)
        return map_html.render_map(shown, places, self.service.describe, self.service.count(model))


def time_left(began: tuple[float, int] | None, done: int, total: int) -> str:
    """How long it will take, in words, by what was done since `began` (when, and how much was done then)."""
    if began is None or done <= began[1]:
        return ""
    seconds = (time.monotonic() - began[0]) * (total - done) / (done - began[1])
    return f", about {seconds / 60:.0f} min left" if seconds > 90 else f", about {max(seconds, 1):.0f} s left"


def within(count: float) -> int:
    """How many results are shown, if so many are asked for."""
    return max(1, min(int(count), results.MOST))


def given(upload: Upload) -> Image.Image | None:
    """The image that a visitor gave, if any.

    Raises:
        FileError: It is none.
    """
    if isinstance(upload, FileError):
        raise upload
    return upload


def read_choice(event: gr.SelectData) -> tuple[str, str, float]:
    """What a chosen card tells (see `cards.js`): its item, the sentence and the time of its search.

    The page keeps these, not the server: a card works even if the server was started anew.
    """
    value = event.value
    return unpack_text(value["item"]), unpack_text(value.get("sentence") or ""), value.get("asked") or 0


def with_hints(function: Callable[..., Any]) -> Callable[..., Any]:
    """Say what is wrong with an input in a message on the page, which stays as it is; other errors are bugs."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (ValueError, FileNotFoundError) as error:  # FileError is a ValueError
            gr.Warning(as_sentence(error), duration=8)
            return gr.skip()

    @functools.wraps(function)
    def generate(*arguments: Any) -> Iterator[Any]:
        answered = False
        try:
            for answer in function(*arguments):
                answered = True
                yield answer
        except (ValueError, FileNotFoundError) as error:
            gr.Warning(as_sentence(error), duration=8)
        if not answered:
            yield gr.skip()  # the page waits for an answer, even if there is none

    return generate if inspect.isgeneratorfunction(function) else call
