"""What a model must have to be evaluated, searched with, and shown in the app."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from vse_demo.data.images import Images


@runtime_checkable
class EmbeddingModel(Protocol):
    """Images and sentences as unit vectors of one space, compared by dot product.

    `evaluate`, `Gallery`, `Ensemble`, the command line and the app ask no more of a model than this, so a class that
    wraps any two encoders can be used in place of a `VSE`: there is nothing to inherit from. On the command line it is
    named by where it is, as in `--model package.module:Name`. Reasons for a score are extra: `explain` and the app give
    them for models whose poolings are AdPool, and do without them for others.

    Example, a CLIP of transformers:

        import torch
        from transformers import CLIPModel, CLIPProcessor

        from vse_demo.data.images import as_image
        from vse_demo.utils.progress import in_batches
        from vse_demo.utils.tensors import l2_normalize

        class CLIP:
            def __init__(self, name="openai/clip-vit-base-patch32"):
                self.model = CLIPModel.from_pretrained(name).eval()
                self.processor = CLIPProcessor.from_pretrained(name)
                self.name, self.dim = name, self.model.config.projection_dim

            @torch.inference_mode()
            def encode_images(self, images, batch_size=32, progress=False):
                vectors = [torch.empty(0, self.dim)]
                for batch in in_batches(images, batch_size, "images", progress):
                    inputs = self.processor(images=[as_image(image) for image in batch], return_tensors="pt")
                    vectors.append(self.model.get_image_features(**inputs).pooler_output)
                return l2_normalize(torch.cat(vectors))

            @torch.inference_mode()
            def encode_texts(self, texts, batch_size=128, progress=False):
                vectors = [torch.empty(0, self.dim)]
                for batch in in_batches(texts, batch_size, "sentences", progress):
                    inputs = self.processor(text=batch, padding=True, truncation=True, return_tensors="pt")
                    vectors.append(self.model.get_text_features(**inputs).pooler_output)
                return l2_normalize(torch.cat(vectors))

            def fingerprint(self):
                return self.name
    """

    @property
    def dim(self) -> int:
        """Of the joint space."""
        ...

    def encode_images(self, images: Images, batch_size: int = 32, progress: bool = False) -> Tensor:
        """Encode images.

        Args:
            images: A list of what `data.images.as_image` reads: paths and PIL images. It may be empty.
            batch_size: How many are encoded together.
            progress: Whether to show a bar; `utils.progress.in_batches` does.

        Returns:
            Unit float32 vectors (len, dim), on the CPU.
        """
        ...

    def encode_texts(self, texts: Sequence[str], batch_size: int = 128, progress: bool = False) -> Tensor:
        """Encode sentences, of which there may be none: unit float32 vectors (len, dim), on the CPU."""
        ...

    def fingerprint(self) -> str:
        """Names this very model. A gallery is refused if the fingerprint has changed since it was encoded."""
        ...
