"""Pictures that are broken, huge, odd or no pictures at all: answered, or refused with a reason, in bounded memory."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import hostile
import pytest
import torch
from PIL import Image

from vse_demo.app.collection import open_service
from vse_demo.cli import main
from vse_demo.data import as_image, content_digest, open_dataset, read_image
from vse_demo.data import images as data
from vse_demo.encoders import WordTokenizer
from vse_demo.model import VSE, ModelConfig
from vse_demo.retrieval import Gallery
from vse_demo.utils.files import FileError

# Pillow warns of sizes and of EXIF data: a server may print that, and a test must not stop at it.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning"),
]
MEMORY = 800 * 2**20  # bytes that a single picture may take
LARGEST = ["bomb.png", "large bomb.png", "text bomb.png", "many clear pixels.png", "many deep pixels.png", "long.bmp"]


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all these pictures."""
    folder = tmp_path_factory.mktemp("album")
    for image in hostile.IMAGES:
        (folder / image.file).write_bytes(image.make())
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = ModelConfig(dim=12, backbone="test_efficientnet", image_size=64, word_dim=8)
    folder = tmp_path_factory.mktemp("model") / "model"
    VSE(config, WordTokenizer(["red", "green", "field"])).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("image", hostile.IMAGES, ids=lambda image: image.file)
def test_every_picture_is_answered_or_refused_with_a_reason(image: hostile.ImageCase, album: Path) -> None:
    if image.refused is None:
        read = as_image(str(album / image.file))
        assert read.mode == "RGB"
        assert 0 < read.width * read.height <= data.MAX_SIDE**2
    else:
        with pytest.raises(FileError, match=image.refused) as caught:
            as_image(str(album / image.file))
        assert str(caught.value).startswith(image.file)
        assert str(album) not in str(caught.value)  # where it lies on a server is nobody's business


def peak_of_reading(path: Path, answer: multiprocessing.connection.Connection) -> None:
    """Send how far reading a picture raised the memory of this process, in bytes."""
    before = resident("VmRSS")
    with contextlib.suppress(FileError):
        read_image(path)
    answer.send(resident("VmHWM") - before)


def resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is measured on Linux")
@pytest.mark.parametrize("file", LARGEST)
def test_memory_stays_bounded(file: str, album: Path) -> None:
    receive, send = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=peak_of_reading, args=(album / file, send))
    process.start()
    send.close()  # if the process dies, there is an error instead of a wait
    assert receive.recv() < MEMORY
    process.join()


def test_deep_greys_of_either_byte_order_are_scaled(album: Path) -> None:
    dark = [read_image(album / f"sixteen bits.{kind}").getpixel((1, 0)) for kind in ("png", "tif")]
    assert dark == [(35, 35, 35)] * 2  # 9,000 of 65,535


def test_a_large_photo_taken_sideways_comes_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: the left edge belongs on top
    sideways = Image.new("RGB", (5000, 1000), "blue")
    sideways.paste((255, 0, 0), (0, 0, 2500, 1000))
    sideways.save(tmp_path / "phone.jpg", exif=exif)
    upright = read_image(tmp_path / "phone.jpg")
    assert upright.size == (410, 2048)
    assert upright.getpixel((200, 100))[0] > 200


# In a folder of one's own


@pytest.fixture
def own_folder(tmp_path: Path, album: Path, save_picture: Callable[..., Path]) -> Path:
    """Three good photos among everything that is refused, and two that cannot even be opened."""
    folder = tmp_path / "mine"
    for number in range(3):
        save_picture(folder / f"good {number}.jpg", number)
    for image in hostile.IMAGES:
        if image.refused is not None:
            shutil.copy(album / image.file, folder)
    (folder / "locked.jpg").write_bytes(b"secret")
    (folder / "locked.jpg").chmod(0)
    return folder


def test_bad_photos_do_not_stop_the_others(
    own_folder: Path, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["index", "--model", str(model_folder), "--data", str(own_folder), "--gallery", str(tmp_path / "g")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        assert main(command) == 0
    out, said = capsys.readouterr()
    assert "3 images added, 0 changed, 0 removed" in out
    assert "; 3 images and 0 captions in all" in out
    seen = [image for image in hostile.IMAGES if Path(image.file).suffix in data.IMAGE_SUFFIXES and image.refused]
    assert len(seen) > 15
    for image in seen:
        assert f"left out: {image.file}" in said


def test_bad_photos_do_not_stop_the_app(own_folder: Path, model_folder: Path) -> None:
    service = open_service(own_folder, [model_folder])
    assert sorted(found.item for found in service.find_images(service.encode_text("a red field"))) == [
        f"good {n}.jpg" for n in range(3)
    ]
    assert set(service.samples(1000)) == {f"good {n}.jpg" for n in range(3)}


def test_captions_of_a_bad_photo_go_with_it(karpathy_folder: Path, model_folder: Path) -> None:
    (karpathy_folder / "images" / "13.jpg").write_bytes(b"no photo")
    gallery = Gallery.build(VSE.from_pretrained(model_folder), open_dataset(karpathy_folder).split("test"), False)
    assert gallery.names == ["12.jpg", "14.jpg", "15.jpg"]
    assert gallery.image_ids.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert not any(
        caption in gallery.captions for caption in open_dataset(karpathy_folder).split("test").captions_of(1)
    )


def test_a_folder_of_nothing_but_bad_photos_is_refused(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.jpg").write_bytes(b"no photo")
    with pytest.raises(FileError, match=r"none of the pictures in .*mine can be read"):
        open_service(tmp_path / "mine", [model_folder]).encode_text("a red field")


# In an archive


def test_a_zip_bomb_is_refused_unopened(hub_copy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MAX_BYTES", 10_000_000)
    with zipfile.ZipFile(hub_copy_folder / "flickr30k-images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in (6, 7):
            archive.writestr(f"flickr30k-images/{number}.jpg", bytes(20_000_000))
    bomb = open_dataset(hub_copy_folder).split("test").images[0]
    for read in (read_image, content_digest):
        with pytest.raises(FileError, match=r"6\.jpg: 20,000,000 bytes are more than this program reads"):
            read(bomb)


def test_a_pipe_is_no_picture_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(FileError, match=r"a\.jpg is empty"):
        read_image(tmp_path / "a.jpg")
