"""Several models as one."""

import hashlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vse_demo.calibration import Calibration
from vse_demo.data.images import Images
from vse_demo.model.encoding import Encoder
from vse_demo.model.lazy import LazyModel
from vse_demo.model.names import MODELS, find_models
from vse_demo.model.onnx_model import OnnxModel
from vse_demo.model.pretrained import PretrainedModel, is_pretrained
from vse_demo.model.protocol import EmbeddingModel
from vse_demo.model.vse import VSE
from vse_demo.utils.checks import check_choice
from vse_demo.utils.objects import call_with, import_object, is_reference
from vse_demo.utils.progress import in_batches
from vse_demo.utils.tensors import check_device, evaluation_mode

BACKENDS = ("torch", "onnx")


class Ensemble(Encoder):
    """Several models as one: its similarities are the mean of the members'.

    The members' unit vectors side by side, divided by the root of their number, are a unit vector
    again, and dot products of such vectors are that mean. So an ensemble is searched like any model.
    Any model that `EmbeddingModel` describes can be a member.

    Raises:
        ValueError: If there is no member.
    """

    def __init__(self, members: Iterable[EmbeddingModel]):
        self.members = list(members)
        if not self.members:
            raise ValueError("an ensemble needs at least one model")
        self.eyes = [member.backbone_name() if isinstance(member, VSE) else "" for member in self.members]

    @torch.inference_mode()
    def embed_images(self, images: Images, batch_size: int, progress: bool) -> Tensor:
        """The unit vectors of a list of images (len, dim).

        Members with the same backbone share its features, which take most of the time.
        """
        parts = [torch.empty(0, self.dim)]
        for batch in in_batches(images, batch_size, "images", progress):
            parts.append(self.join(self.encode_by_member(batch)))
        return torch.cat(parts)

    @torch.inference_mode()
    def encode_by_member(self, images: Images) -> list[Tensor]:
        """Encode a batch of images: the unit float32 vectors (len, dim) of each member by itself."""
        features: dict[str, Tensor] = {}
        vectors = []
        for member, eye in zip(self.members, self.eyes, strict=True):
            if not isinstance(member, VSE):
                vectors.append(member.encode_images(images))
                continue
            with evaluation_mode(member):
                if eye not in features:
                    features[eye] = member.read_image_features(images)
                vectors.append(member.embed_image_features(features[eye].to(member.device)).float().cpu())
        return vectors

    def embed_texts(self, texts: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """The unit vectors of a list of sentences (len, dim)."""
        return self.join([member.encode_texts(texts, batch_size, progress) for member in self.members])

    @property
    def dim(self) -> int:
        """The dimensions of all members together."""
        return sum(member.dim for member in self.members)

    @property
    def calibration(self) -> Calibration | None:
        """What its scores mean, if that was measured for these very members; it lies in the folder of the first."""
        known: Mapping[str, Calibration] = getattr(self.members[0], "calibrations", {})
        return known.get(self.fingerprint()) if known else None

    def fingerprint(self) -> str:
        """Names these very models in this order."""
        return hashlib.blake2b("".join(m.fingerprint() for m in self.members).encode(), digest_size=16).hexdigest()

    @staticmethod
    def join(vectors: list[Tensor]) -> Tensor:
        """The members' unit vectors (n, D) each -> unit vectors (n, sum of D)."""
        return torch.cat(vectors, dim=1) / len(vectors) ** 0.5


def load_model(
    names: str | Path | Sequence[str | Path],
    device: str | torch.device = "cpu",
    backend: str = "torch",
    lazy: bool = False,
) -> EmbeddingModel:
    """Load one model, or the ensemble of several.

    Args:
        names: What `VSE.from_pretrained` takes, and `ensemble`; a CLIP, ALIGN or SigLIP of transformers, by folder or
            hub name; or `package.module:Name`, where a model lies that is not of this package, or a function or class
            that makes one without arguments, or is told the `device`. One or a list.
        device: Where to put them.
        backend: `torch`, or `onnx` for ONNX Runtime, which is faster on CPUs and can only encode. A model is exported
            once, which takes a minute, and kept in the cache (`$VSE_DEMO_CACHE`).
        lazy: Whether each side of a model is built when it first has something to encode; such a model can only encode.

    Raises:
        FileError: If there is no such model, or a file of it is broken or not as it was saved.
        ValueError: If an object is not what `EmbeddingModel` describes, PyTorch cannot use that device here, or the
            backend or an object cannot.
    """
    check_backend(backend, device)
    names = [names] if isinstance(names, str | Path) else names
    models: list[EmbeddingModel] = []
    for name in names:
        foreign = is_reference(name) or (str(name) not in MODELS and is_pretrained(name))
        if foreign and backend == "onnx":
            raise ValueError(f"the backend onnx runs models that were trained here, and {name} was not: choose torch")
        if is_reference(name):
            models.append(_import_model(str(name), device))
        elif foreign:
            models.append(PretrainedModel.from_pretrained(name).to(device))
        else:
            models += [load_folder(folder, device, backend, lazy) for folder in find_models(name)]
    return models[0] if len(models) == 1 else Ensemble(models)


def check_backend(backend: str, device: str | torch.device) -> None:
    """Raise a ValueError if there is no such backend, or it cannot compute on that device here."""
    check_choice(backend, BACKENDS, "backend")
    if backend == "onnx" and str(device) != "cpu":
        raise ValueError(f"the backend onnx computes on CPUs: leave out the device {str(device)!r}, or choose torch")
    check_device(device)


def load_folder(
    folder: Path, device: str | torch.device = "cpu", backend: str = "torch", lazy: bool = False
) -> EmbeddingModel:
    """Load the `VSE` of a folder; arguments as for `load_model`."""
    if backend == "onnx":
        return OnnxModel(folder)
    return LazyModel(folder, device) if lazy else VSE.from_pretrained(folder, device)


def _import_model(reference: str, device: str | torch.device) -> EmbeddingModel:
    found = import_object(reference)
    makes = callable(found) and (isinstance(found, type) or not isinstance(found, EmbeddingModel))
    if str(device) != "cpu" and not (makes and "device" in inspect.signature(found).parameters):
        raise ValueError(
            f"{reference} is not told where to compute, since it has no parameter device: "
            f"leave out the device {str(device)!r}"
        )
    model = call_with(found, {"device": device}, {}) if makes else found
    if not isinstance(model, EmbeddingModel):
        raise ValueError(
            f"{reference} is no model: it needs dim, encode_images, encode_texts and fingerprint (see EmbeddingModel)"
        )
    return model
