"""Several models as one."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vse_demo.data.images import Images
from vse_demo.model.vse import VSE, _batches, _refuse_single


class Ensemble:
    """Several models as one: its similarities are the mean of the members'.

    The members' unit vectors side by side, divided by the root of their number, are a unit vector
    again, and dot products of such vectors are that mean. So an ensemble is searched like any model.
    """

    def __init__(self, members: Iterable[VSE]):
        self.members = list(members)
        if not self.members:
            raise ValueError("an ensemble needs at least one model")
        backbones = [member.image_encoder.backbone for member in self.members]
        self.eyes = ["regions" if backbone is None else backbone.fingerprint() for backbone in backbones]

    @torch.inference_mode()
    def encode_images(self, images: Images, batch_size: int = 32, progress: bool = False) -> Tensor:
        """As for one model. Members with the same backbone share its cells, the dearest part by far."""
        _refuse_single(images, "pictures")
        parts = []
        for batch in _batches(images, batch_size, progress, "pictures"):
            cells: dict[str, Tensor] = {}
            for member, eye in zip(self.members, self.eyes, strict=True):
                if eye not in cells:
                    cells[eye] = member.read_image_features(batch)
            vectors = [
                member.embed_image_features(cells[eye].to(member.device)).float().cpu()
                for member, eye in zip(self.members, self.eyes, strict=True)
            ]
            parts.append(self.join(vectors))
        return torch.cat(parts) if parts else torch.empty(0, self.dim)

    def encode_texts(self, texts: Sequence[str], batch_size: int = 128, progress: bool = False) -> Tensor:
        return self.join([member.encode_texts(texts, batch_size, progress) for member in self.members])

    def similarity(self, images: Images, texts: Sequence[str]) -> Tensor:
        return self.encode_images(images) @ self.encode_texts(texts).T

    @property
    def dim(self) -> int:
        return sum(member.dim for member in self.members)

    def fingerprint(self) -> str:
        return hashlib.blake2b("".join(m.fingerprint() for m in self.members).encode(), digest_size=16).hexdigest()

    @staticmethod
    def join(vectors: list[Tensor]) -> Tensor:
        """The members' unit vectors (n, D) each -> unit vectors (n, sum of D)."""
        return torch.cat(vectors, dim=1) / len(vectors) ** 0.5


def load_model(folders: Sequence[str | Path]) -> VSE | Ensemble:
    """One model, or the ensemble of several."""
    models = [VSE.from_pretrained(folder) for folder in folders]
    return models[0] if len(models) == 1 else Ensemble(models)
