"""Several models as one."""

import contextlib
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vse_demo.data.images import ImageLike, Images, as_images
from vse_demo.model.vse import VSE
from vse_demo.utils.progress import in_batches
from vse_demo.utils.tensors import evaluation_mode


class Ensemble:
    """Several models as one: its similarities are the mean of the members'.

    The members' unit vectors side by side, divided by the root of their number, are a unit vector
    again, and dot products of such vectors are that mean. So an ensemble is searched like any model.

    Raises:
        ValueError: If there is no member.
    """

    def __init__(self, members: Iterable[VSE]):
        self.members = list(members)
        if not self.members:
            raise ValueError("an ensemble needs at least one model")
        backbones = [member.image_encoder.backbone for member in self.members]
        self.eyes = ["regions" if backbone is None else backbone.fingerprint() for backbone in backbones]

    @torch.inference_mode()
    def encode_images(self, images: Images | ImageLike, batch_size: int = 32, progress: bool = False) -> Tensor:
        """Encode images as one model does: unit float32 vectors (len, dim).

        Members with the same backbone share its features, which take most of the time.
        """
        with contextlib.ExitStack() as stack:
            for member in self.members:
                stack.enter_context(evaluation_mode(member))
            parts = [torch.empty(0, self.dim)]
            for batch in in_batches(as_images(images), batch_size, "images", progress):
                parts.append(self._encode_batch(batch))
            return torch.cat(parts)

    def _encode_batch(self, images: Images) -> Tensor:
        features: dict[str, Tensor] = {}
        for member, eye in zip(self.members, self.eyes, strict=True):
            if eye not in features:
                features[eye] = member.read_image_features(images)
        return self.join(
            [
                member.embed_image_features(features[eye].to(member.device)).float().cpu()
                for member, eye in zip(self.members, self.eyes, strict=True)
            ]
        )

    def encode_texts(self, texts: Sequence[str] | str, batch_size: int = 128, progress: bool = False) -> Tensor:
        """Encode sentences as one model does: unit float32 vectors (len, dim)."""
        return self.join([member.encode_texts(texts, batch_size, progress) for member in self.members])

    def similarity(self, images: Images | ImageLike, texts: Sequence[str] | str) -> Tensor:
        """The mean of the members' cosines of every image with every sentence: (images, sentences)."""
        return self.encode_images(images) @ self.encode_texts(texts).T

    @property
    def dim(self) -> int:
        """The dimensions of all members together."""
        return sum(member.dim for member in self.members)

    def fingerprint(self) -> str:
        """Names these very models in this order."""
        return hashlib.blake2b("".join(m.fingerprint() for m in self.members).encode(), digest_size=16).hexdigest()

    @staticmethod
    def join(vectors: list[Tensor]) -> Tensor:
        """The members' unit vectors (n, D) each -> unit vectors (n, sum of D)."""
        return torch.cat(vectors, dim=1) / len(vectors) ** 0.5


def load_model(folders: Sequence[str | Path]) -> VSE | Ensemble:
    """Load one model, or the ensemble of several."""
    models = [VSE.from_pretrained(folder) for folder in folders]
    return models[0] if len(models) == 1 else Ensemble(models)
