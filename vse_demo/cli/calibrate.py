"""`vse-demo calibrate`: what the scores of a model mean, measured on validation data and stored with the model."""

import argparse
from typing import TYPE_CHECKING

from vse_demo.cli.flags import Verbs, add_layout_flag, add_model_flags, data_folder
from vse_demo.utils.files import FileError

if TYPE_CHECKING:
    from vse_demo.calibration import Calibration


def add(verbs: Verbs) -> None:
    """Add the verb and its flags."""
    verb = verbs.add_parser("calibrate", help="measure what scores mean, and store it with the model")
    add_model_flags(verb)
    verb.add_argument(
        "--data",
        type=data_folder,
        action="append",
        required=True,
        help="folder with captioned images; repeat to mix several",
    )
    add_layout_flag(verb)
    verb.add_argument("--split", default="val", help="one that the model has not learned from (default: val)")
    verb.add_argument(
        "--false-alarms", type=float, default=0.05, metavar="SHARE",
        help='accepted share of "nothing is close" although it is (default: 0.05)',
    )  # fmt: skip
    verb.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Encode the split of each data set, search in galleries drawn from all of them, write the tables."""
    import numpy as np
    import torch
    from torch import Tensor

    from vse_demo.calibration import FILE, calibrate, write_calibration
    from vse_demo.data import merge_duplicates, open_dataset
    from vse_demo.model import find_models, load_model
    from vse_demo.utils.objects import is_reference

    if is_reference(chosen.model[0]):
        raise ValueError(f"{chosen.model[0]} has no folder to keep it in: call vse_demo.calibration.calibrate")
    folder = find_models(chosen.model[0])[0]
    model = load_model(chosen.model, chosen.device)
    images: list[Tensor] = []
    texts: list[Tensor] = []
    image_ids: list[np.ndarray] = []
    parts = [merge_duplicates(open_dataset(data, chosen.layout).split(chosen.split)) for data in chosen.data]
    for name, part in zip(chosen.data, parts, strict=True):
        if not part.captions:
            raise FileError(f"{name} has no captions: nothing to measure against")
        image_ids.append(part.image_ids + sum(len(vectors) for vectors in images))
        images.append(model.encode_images(part.images, progress=True))
        texts.append(model.encode_texts(part.captions, progress=True))
    numbers = torch.from_numpy(np.concatenate(image_ids))
    calibration = calibrate(
        torch.cat(images), torch.cat(texts), numbers, model.fingerprint(), false_alarms=chosen.false_alarms
    )
    write_calibration(calibration, folder)
    print_calibration(calibration)
    print(f"written to {folder / FILE}")


def print_calibration(calibration: "Calibration") -> None:
    """A calibration as tables for people."""
    print(
        f"{calibration.images} images, {calibration.captions} captions; the share of right first results by their score"
    )
    for way, name in (("t2i", "text → image"), ("i2t", "image → text")):
        print(f"\n  {name}: images     score for 25 %    50 %    75 %   nothing below   false alarms   misses")
        for table in getattr(calibration, way):
            scores = [table.score_for(share) for share in (0.25, 0.5, 0.75)]
            cells = [f"{score:8.2f}" if score is not None else "       –" for score in scores]
            print(
                f"  {table.gallery:20} {'':9}{cells[0]}{cells[1]}{cells[2]} {table.nothing_below:13.2f} "
                f"{table.false_alarms:14.1%} {table.misses:8.1%}"
            )
