import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ImageOps

from vse_demo.data import open_dataset, read_image
from vse_demo.encoders import NAME_BYTES, ImageEncoder, cached_features
from vse_demo.utils.files import FileError
from vse_demo.utils.paths import default_cache

# Extracts the features of a folder's images, slowly; its encoder is the `tiny_encoder` of the tests.
SLOW_EXTRACTION = """
import sys, time, torch
from pathlib import Path
from vse_demo.encoders import ImageEncoder, cached_features

torch.manual_seed(0)
encoder = ImageEncoder(8, "grid", "test_efficientnet", 64)
encoder.freeze_backbone()
fast = encoder.extract
encoder.extract = lambda images: (time.sleep(float(sys.argv[3])), fast(images))[1]
cached_features(encoder, sorted(Path(sys.argv[1]).iterdir()), Path(sys.argv[2]), batch_size=1)
"""


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def computed(monkeypatch) -> list[tuple[int, int]]:
    """The sizes of all images that a backbone sees, but for the blank one that tells the shape of its features."""
    sizes: list[tuple[int, int]] = []
    extract = ImageEncoder.extract

    def count(encoder, images):
        sizes.extend(image.size for image in images if image.size != (8, 8))
        return extract(encoder, images)

    monkeypatch.setattr(ImageEncoder, "extract", count)
    return sizes


def file_in(cache: Path, name: str) -> Path:
    (file,) = cache.glob(f"cells-*/{name}")  # a single folder
    return file


def names_in(cache: Path) -> list[str]:
    return [name for file in cache.glob("cells-*/rows.txt") for name in file.read_text().split()[::2]]


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


# What the cache gives


def test_cached_features_are_those_of_the_backbone(tiny_encoder, images, cache):
    features = cached_features(tiny_encoder, images, cache, batch_size=4)
    expected = tiny_encoder.extract([read_image(image) for image in images])
    assert len(features) == len(images)
    torch.testing.assert_close(features[range(10)], expected, rtol=1e-3, atol=1e-5)  # fp16 has 11 bits


def test_mirror_images_have_features_of_their_own(tiny_encoder, images, cache):
    plain, mirrored = (cached_features(tiny_encoder, images, cache, mirrored=way)[range(10)] for way in (False, True))
    expected = tiny_encoder.extract([ImageOps.mirror(read_image(image)) for image in images])
    torch.testing.assert_close(mirrored, expected, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(plain, mirrored, atol=1e-3)
    assert torch.equal(cached_features(tiny_encoder, images, cache)[range(10)], plain)


def test_features_come_in_the_order_that_is_asked_for(tiny_encoder, images, cache):
    features = cached_features(tiny_encoder, images, cache)
    everything = features[range(10)]
    assert everything.dtype == torch.float32
    assert torch.equal(features[[7, 2, 2]], everything[[7, 2, 2]])
    assert torch.equal(features[np.array([3])], everything[[3]])
    backwards = cached_features(tiny_encoder, images[::-1], cache)
    assert torch.equal(backwards[range(10)], everything.flip(0))


def test_images_in_an_archive_have_the_features_of_their_files(tiny_encoder, tmp_path, hub_copy_folder, cache):
    zipped = open_dataset(hub_copy_folder).split("train").images
    files = [tmp_path / image.name for image in zipped]
    for file, image in zip(files, zipped, strict=True):
        file.write_bytes(image.read_bytes())
    from_zip = cached_features(tiny_encoder, zipped, cache)[range(4)]
    assert torch.equal(from_zip, cached_features(tiny_encoder, files, tmp_path / "other")[range(4)])


def test_no_images_have_no_features(tiny_encoder, cache):
    assert len(cached_features(tiny_encoder, [], cache)) == 0


def test_regions_are_not_cached(cache):
    with pytest.raises(ValueError, match="takes precomputed regions"):
        cached_features(ImageEncoder(8, "region", region_dim=16), [], cache)


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("VSE_DEMO_CACHE", str(tmp_path / "mine"))
    assert default_cache() == tmp_path / "mine"
    monkeypatch.delenv("VSE_DEMO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "vse_demo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "vse_demo"


# What is computed, and what is not


def test_a_second_call_computes_nothing(tiny_encoder, images, cache, computed):
    first = cached_features(tiny_encoder, images, cache)[range(10)]
    assert len(computed) == 10
    assert torch.equal(cached_features(tiny_encoder, images, cache)[range(10)], first)
    assert len(computed) == 10


def test_a_moved_image_is_known_and_a_changed_one_is_computed(tiny_encoder, images, save_picture, cache, computed):
    before = cached_features(tiny_encoder, images, cache)[range(10)]
    images[3] = images[3].rename(images[3].with_name("moved.jpg"))
    save_picture(images[5], seed=20, size=(33, 33))
    after = cached_features(tiny_encoder, images, cache)[range(10)]
    assert computed[10:] == [(33, 33)]
    changed = (before != after).flatten(1).any(1)
    assert changed.nonzero().tolist() == [[5]]


def test_copies_of_an_image_are_computed_once(tiny_encoder, images, cache, computed):
    images[1].write_bytes(images[0].read_bytes())
    features = cached_features(tiny_encoder, images[:3], cache)
    assert len(computed) == 2
    assert torch.equal(features[[0]], features[[1]])


def test_other_weights_and_other_sizes_have_a_folder_of_their_own(tiny_encoder, images, cache, computed):
    cached_features(tiny_encoder, images[:2], cache)
    with torch.no_grad():
        next(tiny_encoder.backbone.parameters()).view(-1)[0] += 1
    cached_features(tiny_encoder, images[:2], cache)
    tiny_encoder.backbone.image_size = 96
    assert cached_features(tiny_encoder, images[:2], cache)[[0]].shape == (1, 9, 256)
    assert len(computed) == 6
    assert len(list(cache.iterdir())) == 3


def test_the_projection_does_not_matter_to_the_cache(tiny_encoder, images, cache, computed):
    cached_features(tiny_encoder, images[:2], cache)
    torch.nn.init.zeros_(tiny_encoder.projection.linear.weight)
    cached_features(tiny_encoder, images[:2], cache)
    assert len(computed) == 2


# Accidents


def test_a_broken_image_is_named_and_earlier_rows_are_kept(tiny_encoder, images, save_picture, cache, computed):
    images[6].write_bytes(b"no picture")
    with pytest.raises(FileError, match=r"6\.jpg is not an image"):
        cached_features(tiny_encoder, images, cache, batch_size=2)
    assert len(names_in(cache)) == 6
    save_picture(images[6], 6)
    cached_features(tiny_encoder, images, cache, batch_size=2)
    assert len(computed) == 6 + 4


@pytest.mark.parametrize(("file", "lost"), [("rows.f16", 7), ("rows.f16", 3000), ("rows.txt", 1), ("rows.txt", 50)])
def test_partial_rows_are_dropped_and_computed_again(tiny_encoder, images, cache, computed, file, lost):
    before = cached_features(tiny_encoder, images, cache)[range(10)]
    path = file_in(cache, file)
    row = NAME_BYTES if file == "rows.txt" else before[0].numel() * 2
    path.write_bytes(path.read_bytes()[:-lost])
    after = cached_features(tiny_encoder, images, cache)[range(10)]
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-5)
    assert len(computed) == 10 + -(-lost // row)
    assert file_in(cache, "rows.txt").stat().st_size == 10 * NAME_BYTES
    assert file_in(cache, "rows.f16").stat().st_size == 10 * before[0].numel() * 2


def test_rows_without_a_name_are_dropped(tiny_encoder, images, cache):
    before = cached_features(tiny_encoder, images[:4], cache)[range(4)]
    with file_in(cache, "rows.f16").open("ab") as file:
        file.write(bytes(5000))  # killed before it wrote the names
    after = cached_features(tiny_encoder, images, cache)
    assert torch.equal(after[range(4)], before)
    assert (after[range(4, 10)] != 0).any()
    assert file_in(cache, "rows.f16").stat().st_size == 10 * before[0].numel() * 2


@pytest.mark.slow
def test_a_killed_extraction_goes_on_where_it_stopped(tiny_encoder, images, cache, computed, start_python, tmp_path):
    process = start_python("-c", SLOW_EXTRACTION, images[0].parent, cache, 0.2)
    with process:
        wait_for(lambda: len(names_in(cache)) >= 3)
        process.kill()
    done = len(names_in(cache))
    assert process.returncode == -signal.SIGKILL
    assert 3 <= done < 10
    features = cached_features(tiny_encoder, images, cache)
    assert len(computed) == 10 - done
    undisturbed = cached_features(tiny_encoder, images, tmp_path / "other")
    torch.testing.assert_close(features[range(10)], undisturbed[range(10)], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_two_processes_share_the_work(tiny_encoder, images, cache, computed, start_python, tmp_path):
    arguments = "-c", SLOW_EXTRACTION, images[0].parent, cache, 0.05
    with start_python(*arguments) as one, start_python(*arguments) as other:
        errors = one.communicate()[1] + other.communicate()[1]
    assert (one.returncode, other.returncode) == (0, 0), errors
    assert len(names_in(cache)) == len(set(names_in(cache))) == 10
    features = cached_features(tiny_encoder, images, cache)[range(10)]
    assert computed == []
    undisturbed = cached_features(tiny_encoder, images, tmp_path / "other")[range(10)]
    torch.testing.assert_close(features, undisturbed, rtol=1e-3, atol=1e-5)
