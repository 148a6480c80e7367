"""A saved model as ONNX Runtime runs it: the same vectors, faster on CPUs.

The encoders are exported when a model is first used so, and kept in the cache under the model's fingerprint.
"""

import importlib.util
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from vse_demo.data.images import Images, as_image
from vse_demo.data.transforms import to_pixels
from vse_demo.model.dual import read_regions
from vse_demo.model.encoding import text_batches
from vse_demo.model.lazy import StoredModel
from vse_demo.model.vse import VSE
from vse_demo.utils.files import recover_folder, verify_checksums
from vse_demo.utils.paths import default_cache
from vse_demo.utils.progress import in_batches


class OnnxModel(StoredModel):
    """A saved `VSE` whose encoders are run by ONNX Runtime; pictures one by one, which takes less time than batches.

    Args:
        folder: That `VSE.save_pretrained` wrote.

    Raises:
        FileError: If it holds no such model, or a file of it is broken or not as it was saved.
        ValueError: If the model cannot be exported, or the packages that it takes are not installed.
    """

    def __init__(self, folder: str | Path):
        if importlib.util.find_spec("onnxruntime") is None:
            raise ValueError(
                'the backend onnx needs ONNX Runtime, which is not installed: pip install "vse_demo[export]"'
            )
        super().__init__(folder)
        self.programs = self._export()

    def embed_images(self, images: Images, batch_size: int, progress: bool) -> Tensor:
        """The unit vectors of a list of images (len, dim)."""
        parts = [torch.empty(0, self.dim)]
        with ThreadPoolExecutor(4) as pool:  # decoding releases the interpreter lock
            for batch in in_batches(images, batch_size, "images", progress):
                if self.config.vision == "region":
                    parts.append(_run(self._images, read_regions(batch).contiguous()))
                    continue
                for image in pool.map(as_image, batch):  # its share of a batch would take longer
                    parts.append(_run(self._images, to_pixels([image], self.config.image_size).contiguous()))
        return torch.cat(parts)

    def embed_texts(self, texts: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """The unit vectors of a list of sentences (len, dim)."""
        vectors = torch.empty(len(texts), self.dim)
        for numbers, tokens, mask in text_batches(self.tokenizer, texts, batch_size, progress):
            vectors[numbers] = _run(self._texts, tokens, mask)
        return vectors

    @cached_property
    def _images(self) -> Any:
        return _session(self.programs / "images.onnx")

    @cached_property
    def _texts(self) -> Any:
        return _session(self.programs / "texts.onnx")

    def _export(self) -> Path:
        """The folder of the programs, which are made if they are not there; changed ones are refused."""
        folder = default_cache() / "onnx" / self.fingerprint()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not folder.is_dir():
                from vse_demo.model.export import export_folder  # slow to import

                export_folder(VSE.from_pretrained(self.folder), folder)
        verify_checksums(recover_folder(folder))
        return folder


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: Any, *inputs: Tensor) -> Tensor:
    names = (each.name for each in session.get_inputs())
    feed: dict[str, np.ndarray] = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    return torch.from_numpy(session.run(None, feed)[0])
