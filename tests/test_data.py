import csv
import io
import json
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vse_demo.data import CaptionedImages, content_digest, merge_duplicates, open_dataset, read_image
from vse_demo.data import images as data_module
from vse_demo.utils.files import FileError


def record(name: str, *captions: str, **more: str) -> dict:
    return {"filename": name, "sentences": [{"raw": caption} for caption in captions], **more}


def write_records(folder: Path, *records: object, file: str = "dataset_a.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps({"images": records}))
    return folder


@pytest.fixture
def album(tmp_path, save_picture) -> Path:
    """A folder with the pictures `a.jpg` and `b.jpg`."""
    save_picture(tmp_path / "album" / "a.jpg", 0)
    save_picture(tmp_path / "album" / "b.jpg", 1)
    return tmp_path / "album"


# Layouts


def test_karpathys_layout_gives_pictures_captions_and_owners(karpathy_folder, picture_captions):
    dataset = open_dataset(karpathy_folder)
    val = dataset.split("val")
    assert dataset.splits == ["train", "val", "test"]
    assert [len(dataset.split(name)) for name in dataset.splits] == [8, 4, 4]
    assert val.names == ["8.jpg", "9.jpg", "10.jpg", "11.jpg"]
    assert val.images == [karpathy_folder / "images" / name for name in val.names]
    assert val.image_ids.dtype == np.int64
    assert val.image_ids.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert val.captions_of(2) == val.captions[10:15] == picture_captions(10)


def test_coco_pictures_lie_in_their_filepath_and_restval_counts_as_train(tmp_path, save_picture):
    rows = [("train2014", "train"), ("val2014", "restval"), ("val2014", "val")]
    for number, (place, _) in enumerate(rows):
        save_picture(tmp_path / "images" / place / f"{number}.jpg", number)
    records = [record(f"{n}.jpg", f"picture {n}", filepath=place, split=split) for n, (place, split) in enumerate(rows)]
    dataset = open_dataset(write_records(tmp_path, *records, file="dataset_coco.json"))
    assert dataset.splits == ["train", "val"]
    assert dataset.split("train").names == ["train2014/0.jpg", "val2014/1.jpg"]
    assert dataset.split("train").captions == ["picture 0", "picture 1"]
    assert dataset.split("val").images == [tmp_path / "images" / "val2014" / "2.jpg"]


def test_pictures_may_have_different_numbers_of_captions(album):
    data = open_dataset(write_records(album, record("b.jpg"), record("a.jpg", "one ", "two"))).split("all")
    assert (data.names, data.captions, data.image_ids.tolist()) == (["b.jpg", "a.jpg"], ["one", "two"], [1, 1])
    assert data.captions_of(0) == []


def test_the_hugging_face_copy_is_read_in_place(hub_copy_folder, picture_captions):
    before = sorted(hub_copy_folder.rglob("*"))
    dataset = open_dataset(hub_copy_folder)
    val = dataset.split("val")
    assert dataset.splits == ["train", "val", "test"]
    assert val.names == ["4.jpg", "5.jpg"]
    assert val.captions == picture_captions(4) + picture_captions(5)
    assert val.image_ids.tolist() == [0] * 5 + [1] * 5
    assert read_image(val.images[1]).size == (48, 40)
    assert sorted(hub_copy_folder.rglob("*")) == before


def test_precomputed_regions_come_with_their_captions(precomp_folder, picture_captions):
    dataset = open_dataset(precomp_folder)
    dev = dataset.split("dev")
    assert dataset.splits == ["dev", "test", "train"]
    np.testing.assert_array_equal(dev.images, np.load(precomp_folder / "dev_ims.npy"))
    assert isinstance(dev.images, np.memmap)
    assert len(dev) == len(dev.names) == 4
    assert dev.captions_of(3) == picture_captions(11)


def test_one_vector_per_picture_is_one_region(tmp_path):
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "train_ims.npy", vectors)
    (tmp_path / "train_caps.txt").write_text("one\r\ntwo\r\nthree\r\nfour\r\n", newline="")
    data = open_dataset(tmp_path).split("train")
    np.testing.assert_array_equal(data.images, vectors[:, None])
    assert data.captions == ["one", "two", "three", "four"]
    assert data.image_ids.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("inside", ["", "images"])
def test_captions_json_may_map_names_to_captions(tmp_path, save_picture, inside):
    save_picture(tmp_path / inside / "b.jpg")
    save_picture(tmp_path / inside / "more" / "a.jpg")
    (tmp_path / "captions.json").write_text(json.dumps({"more/a.jpg": ["one", "two"], "b.jpg": ["three"]}))
    data = open_dataset(tmp_path).split("all")
    assert data.images == [tmp_path / inside / "more" / "a.jpg", tmp_path / inside / "b.jpg"]
    assert (data.captions, data.image_ids.tolist()) == (["one", "two", "three"], [0, 0, 1])


def test_captions_json_may_be_in_karpathys_layout(album):
    records = record("a.jpg", "one", split="train"), record("b.jpg", "two", split="test")
    dataset = open_dataset(write_records(album, *records, file="captions.json"))
    assert dataset.splits == ["train", "test"]
    assert dataset.split("test").images == [album / "b.jpg"]
    assert dataset.split("test").captions == ["two"]


def test_a_folder_of_pictures_needs_no_captions(album, save_picture):
    save_picture(album / "deep" / "er" / "c.PNG")
    (album / "notes.txt").write_text("not a picture")
    dataset = open_dataset(str(album))
    data = dataset.split("all")
    assert dataset.splits == ["all"]
    assert data.names == ["a.jpg", "b.jpg", "deep/er/c.PNG"]
    assert data.images == [album / name for name in data.names]
    assert (data.captions, data.image_ids.tolist()) == ([], [])


# What is refused


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileError, match="nowhere is not a folder"):
        open_dataset(tmp_path / "nowhere")


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(FileError, match="holds no images and no caption file"):
        open_dataset(tmp_path)


def test_an_unknown_split_names_those_that_exist(karpathy_folder):
    with pytest.raises(FileError, match="no split 'dev'; it has train, val, test"):
        open_dataset(karpathy_folder).split("dev")


def test_several_caption_files_are_refused(album):
    write_records(album, file="dataset_coco.json")
    write_records(album, file="dataset_flickr8k.json")
    with pytest.raises(FileError, match=r"dataset_coco\.json, dataset_flickr8k\.json; keep one"):
        open_dataset(album)


def test_missing_pictures_are_counted_and_the_first_are_named(album):
    names = ["a.jpg", "v.jpg", "w.jpg", "x.jpg", "y.jpg"]
    dataset = open_dataset(write_records(album, *(record(name, "one") for name in names)))
    with pytest.raises(FileError, match=r"4 of 5 images are not in .*album: v\.jpg, w\.jpg, x\.jpg …"):
        dataset.split("all")


def test_pictures_missing_in_the_archive_are_named(hub_copy_folder):
    with zipfile.ZipFile(hub_copy_folder / "flickr30k-images.zip", "w") as archive:
        archive.writestr("flickr30k-images/4.jpg", b"")
    with pytest.raises(FileError, match=r"1 of 2 images are not in .*images\.zip: 5\.jpg$"):
        open_dataset(hub_copy_folder).split("val")


def test_a_truncated_archive_is_named(hub_copy_folder):
    archive = hub_copy_folder / "flickr30k-images.zip"
    archive.write_bytes(archive.read_bytes()[:-50])
    with pytest.raises(FileError, match=r"flickr30k-images\.zip cannot be read: "):
        open_dataset(hub_copy_folder).split("val")


@pytest.mark.parametrize("file", ["dataset_a.json", "captions.json"])
def test_a_truncated_caption_file_is_named(album, file):
    write_records(album, record("a.jpg", "one"), file=file)
    (album / file).write_text((album / file).read_text()[:-5])
    with pytest.raises(FileError, match=f"{file} cannot be read as JSON"):
        open_dataset(album)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"filename": "b.jpg"}, "KeyError.*sentences"),
        ({"sentences": []}, "KeyError.*filename"),
        ({"filename": "b.jpg", "sentences": [{"tokens": ["a"]}]}, "KeyError.*raw"),
        ({"filename": "b.jpg", "sentences": [{"raw": "  "}]}, "a caption must be a sentence, not '  '"),
        ({"filename": "b.jpg", "sentences": [{"raw": 7}]}, "a caption must be a sentence, not 7"),
        ({"filename": "b.jpg", "sentences": [], "split": 7}, "AttributeError"),
        ("b.jpg", "AttributeError"),
    ],
)
def test_a_broken_record_is_named_by_its_number(album, broken, reason):
    with pytest.raises(FileError, match=rf"dataset_a\.json: record 1 is broken: .*{reason}"):
        open_dataset(write_records(album, record("a.jpg", "one"), broken))


@pytest.mark.parametrize("content", [[], {"annotations": []}, {"images": {}}])
def test_json_in_another_layout_is_refused(album, content):
    (album / "dataset_a.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match="not in Karpathy's layout"):
        open_dataset(album)


@pytest.mark.parametrize("content", [["a.jpg"], {"a.jpg": None}, {"a.jpg": [""]}, {"a.jpg": [3]}])
def test_captions_json_in_another_form_is_refused(album, content):
    (album / "captions.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"captions\.json must map file names to lists of captions"):
        open_dataset(album)


def test_a_bare_caption_in_captions_json_is_never_spelt(album):
    (album / "captions.json").write_text(json.dumps({"a.jpg": "dog"}))
    with pytest.raises(FileError, match="lists of captions"):
        open_dataset(album)


@pytest.mark.parametrize(
    "rows",
    [[["a", "b"], ["1", "2"]], [["raw", "split", "filename"], ["not JSON", "train", "1.jpg"]]],
    ids=["other columns", "captions are not JSON"],
)
def test_another_caption_table_is_refused(tmp_path, rows):
    with (tmp_path / "flickr_annotations_30k.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    with pytest.raises(FileError, match="is not the caption table of the Hugging Face copy"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("name", ["../secret.jpg", "/secret.jpg", "link.jpg", "deep/../../secret.jpg"])
@pytest.mark.parametrize("file", ["dataset_a.json", "captions.json"])
def test_pictures_outside_the_folder_are_refused(album, save_picture, name, file):
    secret = save_picture(album.parent / "secret.jpg")
    (album / "link.jpg").symlink_to(secret)
    name = name if name != "/secret.jpg" else str(secret)
    content = {"images": [record(name, "one")]} if file == "dataset_a.json" else {name: ["one"]}
    (album / file).write_text(json.dumps(content))
    with pytest.raises(
        FileError, match=r"\.jpg' (lies|is a link to a file) outside .*album; images must be inside the folder"
    ):
        open_dataset(album).split("all")


def test_a_link_out_of_a_folder_of_images_is_refused(album, save_picture):
    (album / "link.jpg").symlink_to(save_picture(album.parent / "secret.jpg"))
    with pytest.raises(FileError, match=r"'link\.jpg' is a link to a file outside .*album; images must be inside"):
        open_dataset(album).split("all")


@pytest.mark.parametrize("place", ["album/b.jpg", "album/originals/c.jpg"])
def test_a_link_inside_the_folder_is_read(album, save_picture, place):
    save_picture(album / "originals" / "c.jpg", 2)
    (album / "images").mkdir()
    (album / "images" / "link.jpg").symlink_to(album.parent / place)
    data = open_dataset(write_records(album, record("link.jpg", "one"))).split("all")
    assert read_image(data.images[0]).tobytes() == read_image(album.parent / place).tobytes()


def test_a_folder_of_images_may_be_a_link(album, save_picture):
    save_picture(album.parent / "elsewhere" / "c.jpg", 2)
    (album / "images").symlink_to(album.parent / "elsewhere")
    data = open_dataset(write_records(album, record("c.jpg", "one"))).split("all")
    assert read_image(data.images[0]).size == (48, 40)


@pytest.mark.parametrize("target", ["loop.jpg", "gone.jpg"])
def test_a_link_that_leads_nowhere_is_named_as_such(album, target):
    (album / "loop.jpg").symlink_to(target)
    with pytest.raises(FileError, match=r"loop\.jpg") as caught:
        open_dataset(album).split("all")
    assert "outside" not in str(caught.value)


@pytest.mark.parametrize("layout", ["dataset_a.json", "captions.json", "archive"])
@pytest.mark.parametrize(("on_disk", "listed"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_accents_in_names_may_be_written_either_way(tmp_path, save_picture, hub_copy_folder, layout, on_disk, listed):
    theirs, ours = (unicodedata.normalize(form, "Öre/café.jpg") for form in (on_disk, listed))
    assert theirs != ours
    file = save_picture(tmp_path / "album" / theirs, 3)
    if layout == "archive":
        with zipfile.ZipFile(hub_copy_folder / "flickr30k-images.zip", "w") as archive:
            archive.write(file, f"images/{Path(theirs).name}")
        with (hub_copy_folder / "flickr_annotations_30k.csv").open("w", newline="", encoding="utf-8") as table:
            csv.writer(table).writerows([["raw", "split", "filename"], ['["one"]', "all", Path(ours).name]])
        data = open_dataset(hub_copy_folder).split("all")
    else:
        content = {"images": [record(ours, "one")]} if layout == "dataset_a.json" else {ours: ["one"]}
        (tmp_path / "album" / layout).write_text(json.dumps(content))
        data = open_dataset(tmp_path / "album").split("all")
    assert data.images[0].read_bytes() == file.read_bytes()


# Precomputed regions


def write_precomputed(folder: Path, regions: bytes | np.ndarray, captions: str = "one\ntwo\n") -> Path:
    if isinstance(regions, np.ndarray):
        np.save(folder / "train_ims.npy", regions)
    else:
        (folder / "train_ims.npy").write_bytes(regions)
    (folder / "train_caps.txt").write_text(captions)
    return folder


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("shape", [(3, 2, 4), (0, 2, 4), (2,), (2, 2, 2, 2)])
def test_captions_must_be_a_whole_multiple_of_the_images(tmp_path, shape):
    write_precomputed(tmp_path, np.zeros(shape, np.float32))
    with pytest.raises(FileError, match=r"train_ims\.npy is \(.* and train_caps\.txt has 2 lines"):
        open_dataset(tmp_path).split("train")


def test_an_empty_line_among_the_captions_is_refused(tmp_path):
    write_precomputed(tmp_path, np.zeros((3, 1, 4), np.float32), "one\n\nthree\n")
    with pytest.raises(FileError, match=r"cannot read 'train' of .*: a caption must be a sentence, not ''"):
        open_dataset(tmp_path).split("train")


def test_missing_captions_of_regions_are_named(precomp_folder):
    (precomp_folder / "dev_caps.txt").unlink()
    with pytest.raises(FileError, match=r"cannot read 'dev' of .*dev_caps\.txt"):
        open_dataset(precomp_folder).split("dev")


def test_pickled_regions_are_refused_unopened(tmp_path):
    write_precomputed(tmp_path, np.array([{"a": 1}, None], dtype=object))
    with pytest.raises(FileError, match=r"cannot read 'train' of .*pickle"):
        open_dataset(tmp_path).split("train")


@pytest.mark.parametrize("content", [b"no array", npy(np.zeros((2, 3, 4)))[:-8]], ids=["foreign", "truncated"])
def test_broken_regions_are_refused(tmp_path, content):
    with pytest.raises(FileError, match="cannot read 'train'"):
        open_dataset(write_precomputed(tmp_path, content)).split("train")


def test_empty_regions_are_refused(tmp_path):
    with pytest.raises(FileError, match="cannot read 'train'"):
        open_dataset(write_precomputed(tmp_path, b"")).split("train")


# Pictures


def save_with(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


RED = Image.new("RGB", (12, 8), (255, 0, 0))


@pytest.mark.parametrize(
    ("file", "image"),
    [
        ("cmyk.jpg", RED.convert("CMYK")),
        ("palette.png", RED.quantize(4)),
        ("alpha.png", RED.convert("RGBA")),
        ("palette.gif", RED.quantize(4)),
        ("plain.webp", RED),
        ("plain.bmp", RED),
        ("plain.tif", RED),
    ],
)
def test_every_colour_mode_is_read_as_rgb(tmp_path, file, image):
    read = read_image(save_with(tmp_path / file, image))
    assert (read.mode, read.size) == ("RGB", (12, 8))
    np.testing.assert_allclose(np.asarray(read), np.asarray(RED), atol=4)


def test_grey_pictures_with_alpha_are_read_as_rgb(tmp_path):
    read = read_image(save_with(tmp_path / "grey.png", Image.new("LA", (3, 2), (90, 255))))
    assert np.asarray(read).tolist() == [[[90, 90, 90]] * 3] * 2


def test_sixteen_bit_pictures_keep_their_greys(tmp_path):
    grey = np.array([[0, 64 * 256, 128 * 256, 255 * 256]], dtype=np.uint16)
    read = read_image(save_with(tmp_path / "grey.png", Image.fromarray(grey)))
    np.testing.assert_allclose(np.asarray(read)[0, :, 0], [0, 64, 128, 255], atol=1)


def test_a_palette_with_graded_transparency_is_read_without_a_warning(tmp_path, images):
    with Image.open(images[0]) as image:
        path = save_with(tmp_path / "icon.png", image.quantize(4), transparency=bytes([0, 128, 200, 255]))
    assert read_image(path).mode == "RGB"


def test_a_moving_picture_gives_its_first_frame(tmp_path):
    blue = Image.new("RGB", RED.size, (0, 0, 255))
    path = save_with(tmp_path / "moves.gif", RED, save_all=True, append_images=[blue, blue])
    assert read_image(path).getpixel((5, 5)) == (255, 0, 0)


def test_a_picture_taken_sideways_comes_upright(tmp_path):
    sideways = Image.new("RGB", (40, 20), (0, 0, 255))
    sideways.paste((255, 0, 0), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: the left edge belongs on top
    upright = read_image(save_with(tmp_path / "phone.jpg", sideways, exif=exif, quality=95))
    assert upright.size == (20, 40)
    np.testing.assert_allclose(upright.getpixel((10, 5)), (255, 0, 0), atol=5)
    np.testing.assert_allclose(upright.getpixel((10, 35)), (0, 0, 255), atol=5)


@pytest.mark.parametrize(
    ("keep", "reason"),
    [(0, "is empty"), (20, r"is not an image that this program reads"), (500, "cannot be read as an image: ")],
)
def test_a_broken_picture_is_named(images, keep, reason):
    images[3].write_bytes(images[3].read_bytes()[:keep])
    with pytest.raises(FileError, match=rf"^3\.jpg {reason}"):
        read_image(images[3])


def test_a_broken_picture_in_an_archive_is_named(hub_copy_folder):
    image = open_dataset(hub_copy_folder).split("test").images[0]
    archive = hub_copy_folder / "flickr30k-images.zip"
    archive.write_bytes(archive.read_bytes().replace(image.read_bytes()[:200], bytes(200)))
    with pytest.raises(FileError, match=r"^6\.jpg cannot be read as an image: "):
        read_image(open_dataset(hub_copy_folder).split("test").images[0])


@pytest.mark.parametrize(("place", "limit"), [(data_module, "MAX_PIXELS"), (Image, "MAX_IMAGE_PIXELS")])
def test_a_picture_with_too_many_pixels_is_refused(images, monkeypatch, place, limit):
    monkeypatch.setattr(place, limit, 1000)
    with pytest.raises(FileError, match=r"^0\.jpg: .*more .*than this program reads"):
        read_image(images[0])


# Duplicates


def test_the_digest_is_that_of_the_content(images, hub_copy_folder):
    zipped = open_dataset(hub_copy_folder).split("train").images[0]
    copy = images[1].with_name("copy.jpg")
    copy.write_bytes(zipped.read_bytes())
    assert content_digest(copy) == content_digest(zipped)
    assert len({content_digest(image) for image in images}) == len(images)


def test_the_digest_of_a_broken_picture_in_an_archive_names_it(hub_copy_folder):
    image = open_dataset(hub_copy_folder).split("test").images[0]
    archive = hub_copy_folder / "flickr30k-images.zip"
    archive.write_bytes(archive.read_bytes().replace(image.read_bytes()[:200], bytes(200)))
    with pytest.raises(FileError, match=r"6\.jpg"):
        content_digest(open_dataset(hub_copy_folder).split("test").images[0])


def test_merged_duplicates_share_the_captions_of_all(album):
    (album / "copy.jpg").write_bytes((album / "a.jpg").read_bytes())
    records = record("b.jpg", "1"), record("a.jpg", "2", "3"), record("copy.jpg", "4"), record("b.jpg", "5")
    merged = merge_duplicates(open_dataset(write_records(album, *records)).split("all"))
    assert merged.names == ["b.jpg", "a.jpg"]
    assert merged.images == [album / "b.jpg", album / "a.jpg"]
    assert [merged.captions_of(0), merged.captions_of(1)] == [["1", "5"], ["2", "3", "4"]]


class Counted(np.ndarray):
    """Counts the numbers that are computed with."""

    seen = 0

    def __array_ufunc__(self, function, method, *inputs, **options):
        Counted.seen += max(map(np.size, inputs))
        return getattr(function, method)(*map(np.asarray, inputs), **options)


def test_the_captions_of_all_images_are_one_pass_over_them():
    image_ids = np.random.default_rng(0).permutation(np.repeat(np.arange(200), 5))
    captions = [f"{image} {number}" for number, image in enumerate(image_ids)]
    data = CaptionedImages(np.empty((200, 1, 1)), [*map(str, range(200))], captions, image_ids.view(Counted))
    Counted.seen = 0
    groups = [data.captions_of(image) for image in range(200)]
    assert groups == [[each for each in captions if each.split()[0] == str(image)] for image in range(200)]
    assert Counted.seen <= 10 * len(captions)  # and not for every image


def test_equal_rows_of_regions_are_merged():
    regions = np.random.default_rng(0).normal(size=(3, 4, 5))[[0, 1, 0, 2]]
    data = CaptionedImages(regions, list("abcd"), list("12345"), np.array([0, 1, 2, 3, 2]))
    merged = merge_duplicates(data)
    np.testing.assert_array_equal(merged.images, regions[[0, 1, 3]])
    assert merged.names == ["a", "b", "d"]
    assert merged.image_ids.tolist() == [0, 1, 0, 2, 0]


def test_captions_that_are_split_into_words_are_read(precomp_folder):
    plain = open_dataset(precomp_folder).split("dev").captions
    for path in precomp_folder.glob("*_caps.txt"):
        words = [",".join(line.rstrip(".").replace(",", " ,").split()) for line in path.read_text().splitlines()]
        path.with_name(path.name.replace("_caps", "_precaps_stan")).write_text("\n".join(words) + "\n")
        path.unlink()
    words = open_dataset(precomp_folder).split("dev").captions
    assert words == [" ".join(caption.rstrip(".").replace(",", " ").split()) for caption in plain]


def test_captions_that_do_not_fit_the_regions_are_named_by_their_own_file(precomp_folder):
    words = (precomp_folder / "dev_caps.txt").rename(precomp_folder / "dev_precaps_stan.txt")
    words.write_text("red,field\n" * 3)
    with pytest.raises(FileError, match=r"dev_precaps_stan\.txt has 3 lines: the captions must be a whole multiple"):
        open_dataset(precomp_folder).split("dev")


def test_regions_inside_precomp_are_found(precomp_folder, tmp_path):
    (tmp_path / "f30k" / "images").mkdir(parents=True)
    precomp_folder.rename(tmp_path / "f30k" / "precomp")
    assert open_dataset(tmp_path / "f30k").split("train").images.shape == (8, 36, 16)
