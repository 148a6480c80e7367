"""A model as programs that other runtimes run: `torch.export` and ONNX, one program for images and one for sentences.

    images: pixels (B, 3, size, size) in [0, 1] -> unit vectors (B, dim); regions (B, N, C) for a model that takes them
    texts: token numbers (B, N), padded with 0, and their mask (B, N), True where one is real -> unit vectors (B, dim)

Decoding and resizing of images and splitting sentences into tokens are not in them. Images are squeezed to the square
by Pillow's bicubic filter (`data.transforms.to_pixels`); the tokenizer's file lies beside the programs.
"""

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vse_demo import ops
from vse_demo.encoders.backbone import feature_rows
from vse_demo.encoders.tokenizers import MAX_TOKENS, pad_tokens
from vse_demo.model.config import write_config
from vse_demo.model.vse import VSE
from vse_demo.utils.files import FileError, write_checksums, write_folder
from vse_demo.utils.tensors import evaluation_mode

IMAGES, TEXTS = "images", "texts"
NEEDED = ("onnx", "onnxruntime", "onnxscript")
TOLERANCE = 1e-5  # of an exported program, against the model


class ImageProgram(nn.Module):
    """Pixels or regions -> unit vectors, with the batch norms of the backbone folded away."""

    def __init__(self, model: VSE):
        super().__init__()
        self.model, backbone = model, model.image_encoder.backbone
        self.net = None if backbone is None else backbone.folded()

    def forward(self, images: Tensor) -> Tensor:
        backbone = self.model.image_encoder.backbone
        if backbone is not None:
            images = feature_rows(self.net, (images - backbone.mean) / backbone.std)
        return self.model.embed_image_features(images)


class TextProgram(nn.Module):
    """Token numbers and their mask -> unit vectors."""

    def __init__(self, model: VSE):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.model.embed_tokens(tokens, mask)


def export_programs(model: VSE) -> dict[str, ExportedProgram]:
    """Both encoders of a model as programs of `torch.export`, for batches and sentences of any size.

    They hold operations of PyTorch alone, except that a BiGRU is one operation of ours: where such a program is loaded,
    `import vse_demo.ops` must come first.

    Args:
        model: Is exported as it is in evaluation mode, for the CPU.

    Returns:
        The programs by name: `images` and `texts`.

    Raises:
        ValueError: If a part of the model cannot be exported, or its program gives other vectors than the model.
    """
    programs = {}
    with evaluation_mode(model), torch.no_grad(), ops.disable_kernels():
        for name, program, inputs, shapes in _parts(model):
            try:
                with _quiet():
                    programs[name] = torch.export.export(program, inputs, dynamic_shapes=shapes, strict=False)
                    found = programs[name].module()(*inputs)
            except Exception as error:  # the exporter fails in many ways on what it cannot follow
                raise ValueError(f"the {name} encoder cannot be exported: {_first_line(error)}") from error
            _check(name, program(*inputs), found)
    return programs


def export_onnx(model: VSE, folder: Path) -> list[Path]:
    """Write both encoders of a model as ONNX files, `images.onnx` and `texts.onnx`.

    Args:
        model: Is exported as it is in evaluation mode.
        folder: Must be there.

    Returns:
        The files.

    Raises:
        ValueError: If a part of the model cannot be exported, or its program gives other vectors than the model.
    """
    import onnxruntime

    from vse_demo.model.onnx_ops import TRANSLATIONS

    files = []
    programs = export_programs(model)
    for name, program, inputs, _ in _parts(model):
        path = folder / f"{name}.onnx"
        with evaluation_mode(model), torch.no_grad():
            expected = program(*inputs)
        try:
            with _quiet():
                onnx = torch.onnx.export(
                    programs[name], (), dynamo=True, custom_translation_table=TRANSLATIONS, external_data=False
                )
                assert onnx is not None
                onnx.save(path)
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            named = zip((each.name for each in session.get_inputs()), inputs, strict=True)
            found = torch.from_numpy(session.run(None, {key: tensor.numpy() for key, tensor in named})[0])
        except Exception as error:  # the exporter and the runtime fail in many ways
            raise ValueError(f"the {name} encoder cannot be exported to ONNX: {_first_line(error)}") from error
        _check(name, expected, found)
        files.append(path)
    return files


def export_folder(model: VSE, folder: str | Path, form: str = "onnx") -> list[Path]:
    """Write both encoders into a new folder, with the tokenizer and the settings of the model, or nothing at all.

    Args:
        model: What to export.
        folder: Must not be there yet.
        form: `onnx` for `images.onnx` and `texts.onnx`, `torch` for `images.pt2` and `texts.pt2` of `torch.export`.

    Returns:
        The files of the encoders.

    Raises:
        FileError: If the folder is there.
        ValueError: If a part of the model cannot be exported, its program gives other vectors than the model, or the
            packages that it takes are not installed.
    """
    folder = Path(folder)
    if folder.exists():
        raise FileError(f"{folder} is there already: choose a new folder")
    if form == "onnx" and (missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]):
        raise ValueError(f'{", ".join(missing)} must be installed to export: pip install "vse_demo[export]"')
    with write_folder(folder) as fresh:
        if form == "onnx":
            files = export_onnx(model, fresh)
        else:
            files = [fresh / f"{name}.pt2" for name in (IMAGES, TEXTS)]
            for file, program in zip(files, export_programs(model).values(), strict=True):
                with _quiet():
                    torch.export.save(program, file)
        model.tokenizer.save(fresh)
        write_config(model.config, fresh)
        write_checksums(fresh)
    return [folder / file.name for file in files]


def _parts(model: VSE) -> Iterator[tuple[str, nn.Module, tuple[Tensor, ...], Any]]:
    """Name, program, example and dynamic shapes of each encoder. The examples have sentences of different lengths."""
    batch, backbone = Dim("batch", min=1, max=4096), model.image_encoder.backbone
    generator = torch.Generator().manual_seed(0)
    if backbone is None:
        regions, rows = torch.rand(3, 5, model.config.region_dim, generator=generator), Dim("rows", min=1, max=1024)
        yield IMAGES, ImageProgram(model), (regions,), ({0: batch, 1: rows},)
    else:
        pixels = torch.rand(3, 3, backbone.image_size, backbone.image_size, generator=generator)
        yield IMAGES, ImageProgram(model), (pixels,), ({0: batch},)
    tokens, mask = pad_tokens(model.tokenizer.encode(["a dog", "two dogs on a beach", "a man in a red coat, walking"]))
    words = Dim("words", min=2, max=MAX_TOKENS)
    of_tokens: dict[int, Any] = {0: batch, 1: words}
    if tokens.dim() == 3:
        of_tokens[2] = Dim.AUTO  # n-grams of the words
    yield TEXTS, TextProgram(model), (tokens, mask), (of_tokens, {0: batch, 1: words})


def _check(name: str, expected: Tensor, found: Tensor) -> None:
    """Refuse a program that runs and is wrong."""
    difference = float((expected - found).abs().max())
    if not difference <= TOLERANCE:
        raise ValueError(
            f"the exported {name} encoder is wrong: its vectors differ by {difference:.2g} from the model's"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters tell about themselves."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
