"""Keep a 6 × 6 grid of features of each photo, for many small trainings on the same eyes.

    python scripts/grid_features.py --data data/flickr30k --model grid-minilm --out runs/compare/flickr30k \\
        --train 2000 --dev 100 --test 400

The backbone of a shipped model sees each photo once, and its cells are averaged to 36 vectors, as many as the paper has
regions. OUT is a data set in the layout of precomputed regions. Only photos with five captions are taken: `train` from
the training split, `dev` and `test` one after the other from the validation split.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d

from vse_demo.data import open_dataset, read_image
from vse_demo.encoders import ImageEncoder
from vse_demo.model import VSE
from vse_demo.utils.files import write_atomic, write_folder
from vse_demo.utils.progress import in_batches
from vse_demo.utils.runtime import tune_process

GRID = 6  # vectors a side
CAPTIONS = 5


def main() -> None:
    """Write the features of one data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a data set with train and val splits")
    parser.add_argument("--model", default="grid-minilm", help="whose backbone is used, by name or folder")
    parser.add_argument("--out", type=Path, required=True, help="folder, which must not exist yet")
    for name, count in (("train", 2000), ("dev", 500), ("test", 0)):
        parser.add_argument(f"--{name}", type=int, default=count, help="photos (default: %(default)s)")
    chosen = parser.parse_args()
    tune_process()
    encoder = VSE.from_pretrained(chosen.model).image_encoder
    keep_features(encoder, chosen.data, chosen.out, chosen.train, chosen.dev, chosen.test)


@torch.inference_mode()
def keep_features(encoder: ImageEncoder, data: Path, out: Path, train: int, dev: int, test: int = 0) -> None:
    """Write the first photos that have five captions."""
    with write_folder(out) as fresh:
        for split, parts in (("train", {"train": train}), ("val", {"dev": dev, "test": test})):
            photos = open_dataset(data).split(split)
            captions = [photos.captions_of(image)[:CAPTIONS] for image in range(len(photos))]
            complete = [image for image, own in enumerate(captions) if len(own) == CAPTIONS]
            for name, count in parts.items():
                chosen, complete = complete[:count], complete[count:]
                if not chosen:
                    continue
                grids = []
                for batch in in_batches(chosen, 32, f"{name} photos", True):
                    cells = encoder.extract([read_image(photos.images[image]) for image in batch])  # (B, N, C)
                    side = round(cells.shape[1] ** 0.5)
                    grid = adaptive_avg_pool2d(cells.mT.unflatten(2, (side, side)), GRID)
                    grids.append(grid.flatten(2).mT.half())
                np.save(fresh / f"{name}_ims.npy", torch.cat(grids).numpy())
                lines = [" ".join(caption.split()) for image in chosen for caption in captions[image]]
                write_atomic(fresh / f"{name}_caps.txt", "".join(f"{line}\n" for line in lines))


def data_sets(out: Path) -> list[str]:
    """The data sets whose features are in a folder, Flickr30K first."""
    return sorted(
        (file.parent.name for file in out.glob("*/train_ims.npy")), key=lambda name: (name != "flickr30k", name)
    )


if __name__ == "__main__":
    main()
