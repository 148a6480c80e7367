"""The features that the small trainings share: a grid of each photo that has five captions."""

import sys
from pathlib import Path

import numpy as np
from support import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import grid_features

from vse_demo.data import open_dataset, read_image
from vse_demo.encoders import ImageEncoder


def test_cells_are_averaged_to_a_grid(karpathy_folder: Path, tiny_encoder: ImageEncoder, tmp_path: Path) -> None:
    grid_features.keep_features(tiny_encoder, karpathy_folder, tmp_path / "out" / "tiny", train=3, dev=1)
    split = open_dataset(karpathy_folder).split("train")
    features = np.load(tmp_path / "out" / "tiny" / "train_ims.npy")
    assert features.shape == (3, 36, 256)
    [cells] = tiny_encoder.extract([read_image(split.images[1])])  # 2 × 2, each of which becomes 3 × 3
    np.testing.assert_allclose(features[1].reshape(6, 6, 256)[::3, ::3].reshape(4, 256), cells.detach(), atol=2e-3)


def test_dev_and_test_are_different_validation_photos(karpathy_folder: Path, tiny_encoder, tmp_path: Path) -> None:
    grid_features.keep_features(tiny_encoder, karpathy_folder, tmp_path / "out" / "tiny", train=3, dev=1, test=9)
    validation, kept = open_dataset(karpathy_folder).split("val"), open_dataset(tmp_path / "out" / "tiny")
    assert kept.split("train").captions == open_dataset(karpathy_folder).split("train").captions[:15]
    assert kept.split("dev").captions + kept.split("test").captions == validation.captions  # there are no more
    assert len(kept.split("dev")) == 1
    assert grid_features.data_sets(tmp_path / "out") == ["tiny"]
