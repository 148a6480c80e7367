import json
import os
import shutil
from pathlib import Path

import pytest

from vse_demo.utils.files import FileError, read_json, recover_folder, replace_folder, write_atomic, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_atomic_makes_the_folder_and_an_ordinary_file(tmp_path):
    path = tmp_path / "new" / "note.txt"
    write_atomic(path, "grün")
    assert path.read_bytes() == "grün".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(path.parent) == ["note.txt"]


def test_write_atomic_replaces_the_old_content(tmp_path):
    path = tmp_path / "note.txt"
    write_atomic(path, b"a long old text")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch, step, error):
    path = tmp_path / "note.txt"
    write_atomic(path, "old")

    def fail(*_):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["note.txt"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`model`, with the file `old`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("old")
    return tmp_path / "model"


def save_new(folder: Path, content: str | None = "new") -> None:
    """Save a folder with the file `new`; without content the saving fails half-way."""
    with replace_folder(folder) as fresh:
        (fresh / "new").touch()
        (fresh / "new").write_text(content)


def crash_during_swap(folder: Path) -> None:
    """What a kill between the two renames of `replace_folder` leaves."""
    os.rename(folder, folder.with_name(".model.old"))


def test_replace_folder_makes_a_folder_that_was_not_there(tmp_path):
    save_new(tmp_path / "runs" / "model")
    assert names(tmp_path / "runs") == ["model"]
    assert names(tmp_path / "runs" / "model") == ["new"]


def test_replace_folder_swaps_the_whole_folder(folder):
    save_new(folder)
    assert names(folder) == ["new"]
    assert names(folder.parent) == ["model"]
    assert folder.stat().st_mode & 0o777 == 0o755


def test_replace_folder_keeps_the_old_one_when_the_block_fails(folder):
    with pytest.raises(TypeError):
        save_new(folder, content=None)
    assert names(folder) == ["old"]
    assert names(folder.parent) == ["model"]


def test_replace_folder_puts_the_old_one_back_when_the_new_one_cannot_take_its_place(folder, monkeypatch):
    rename = os.rename

    def refuse_new(source, target):
        if names(Path(source)) == ["new"]:
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse_new)
    with pytest.raises(OSError, match="no"):
        save_new(folder)
    assert names(folder) == ["old"]
    assert names(folder.parent) == ["model"]


def test_the_old_content_is_found_after_a_crash_between_the_renames(folder):
    crash_during_swap(folder)
    assert names(recover_folder(folder)) == ["old"]


def test_replace_folder_works_after_a_crash_between_the_renames(folder):
    crash_during_swap(folder)
    save_new(folder)
    assert names(recover_folder(folder)) == ["new"]
    assert names(folder.parent) == ["model"]


def test_the_new_folder_stays_after_a_crash_before_the_clean_up(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        save_new(folder)
    assert len(names(folder.parent)) == 2
    assert names(recover_folder(folder)) == ["new"]
    save_new(folder)
    assert names(folder.parent) == ["model"]


def test_whole_folder_is_the_folder_in_peace(folder):
    assert recover_folder(folder) == folder.resolve()
    assert not recover_folder(folder.parent / "never made").exists()


def test_a_folder_behind_a_symlink_can_be_saved_twice(folder):
    link = folder.parent / "link"
    link.symlink_to(folder)
    save_new(link)
    save_new(link)
    assert names(link) == ["new"]


def test_json_is_written_readably_and_read_back(tmp_path):
    content = {"words": ["grün", "犬"], "numbers": [1, 2.5, None]}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content
    assert "犬" in (tmp_path / "a.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "content",
    [b"", json.dumps({"a": [1, 2]}).encode()[:-2], b'"\xff\xfe"', b"[" * 200_000],
    ids=["empty", "truncated", "not UTF-8", "nested too deeply"],
)
def test_read_json_names_a_file_that_is_not_json(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FileError, match=r"a\.json cannot be read as JSON: ."):
        read_json(tmp_path / "a.json")


def test_read_json_names_a_file_that_is_missing(tmp_path):
    with pytest.raises(FileError, match=r"a\.json is missing$"):
        read_json(tmp_path / "a.json")


def test_read_json_names_a_folder(tmp_path):
    with pytest.raises(FileError, match=r"cannot be read as JSON: .*directory"):
        read_json(tmp_path)
