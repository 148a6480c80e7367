import contextlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from vse_demo.utils.files import (
    CHECKSUMS,
    FileError,
    read_json,
    recover_folder,
    saved_files,
    write_atomic,
    write_checksums,
    write_folder,
    write_json,
)


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
    """`model`, with the files `new` and `outdated` of an earlier save, and their checksums."""
    save(tmp_path / "model", new="old", outdated="old")
    return tmp_path / "model"


def save(folder: Path, **contents: str | None) -> None:
    """Save files of these contents; with None for one of them the saving fails half-way."""
    with write_folder(folder, lambda _: {"new", "outdated", CHECKSUMS}) as fresh:
        for name, content in contents.items():
            (fresh / name).write_text(content)
        write_checksums(fresh)


def contents(folder: Path) -> dict[str, str]:
    """All that is below a folder, links and empty folders too, but for checksums."""
    entries = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.name != CHECKSUMS}
    return {
        name: os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
        for name, path in entries.items()
    }


def add_documents(folder: Path) -> dict[str, str]:
    """Put into a folder what people have in theirs; its contents."""
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "deep" / "er" / "thesis.tex").write_text("years of work")
    (folder / ".hidden").write_text("a secret")
    (folder / "link").symlink_to("deep/er/thesis.tex")
    (folder / "nowhere").symlink_to("/nowhere/at/all")
    return contents(folder)


def test_files_are_written_into_a_folder_that_was_not_there(tmp_path):
    save(tmp_path / "runs" / "model", new="new")
    assert names(tmp_path / "runs") == ["model"]
    assert contents(tmp_path / "runs" / "model") == {"new": "new"}
    assert (tmp_path / "runs" / "model").stat().st_mode & 0o777 == 0o755


def test_saving_again_replaces_the_files_of_the_earlier_save_and_no_others(folder):
    documents = {name: content for name, content in add_documents(folder).items() if name not in ("new", "outdated")}
    before = (folder / "deep" / "er" / "thesis.tex").stat()
    save(folder, new="new")
    assert contents(folder) == {"new": "new", **documents}
    after = (folder / "deep" / "er" / "thesis.tex").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert names(folder.parent) == ["model"]


def test_a_folder_that_was_never_saved_keeps_all_that_it_holds(tmp_path):
    (tmp_path / "documents").mkdir()
    documents = add_documents(tmp_path / "documents")
    save(tmp_path / "documents", new="new")
    assert contents(tmp_path / "documents") == {"new": "new", **documents}


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_file_of_somebody_else_under_our_name_is_refused(tmp_path, kind):
    theirs = tmp_path / "documents" / "new"
    theirs.mkdir(parents=True) if kind == "folder" else write_atomic(theirs, "years of work")
    before = contents(tmp_path)
    message = r"documents/new was not saved by this program: choose another folder"
    with pytest.raises(FileError, match=message), write_folder(tmp_path / "documents") as fresh:
        (fresh / "new").write_text("new")
    assert contents(tmp_path) == before


def test_the_checksums_of_somebody_else_do_not_make_their_files_ours(tmp_path):
    (tmp_path / "new").write_text("years of work")
    write_checksums(tmp_path)
    assert saved_files(tmp_path, ["config.json", CHECKSUMS], lambda _: False) == set()
    assert saved_files(tmp_path, ["new", CHECKSUMS], lambda _: False) == {"new", CHECKSUMS}
    assert saved_files(tmp_path, ["config.json"], lambda _: True) == {"config.json"}


def test_a_failed_save_leaves_what_was_there(folder):
    before = contents(folder)
    with pytest.raises(TypeError):
        save(folder, new=None)
    assert contents(folder) == before
    assert names(folder.parent) == ["model"]


STEPS = ["link", "replace", "rename"]


@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize("documents", [False, True])
def test_whenever_a_save_is_cut_off_there_is_the_old_content_or_the_new(tmp_path, monkeypatch, number, documents):
    """Cut off before operation `number` on names: the files are the old ones or the new ones, and none of both."""
    folder, kept = tmp_path / "model", {}
    save(folder, new="old", more="old")
    if documents:
        kept = {name: content for name, content in add_documents(folder).items() if name not in ("new", "more")}
    left = [None] * number

    class PowerCutError(BaseException):
        pass

    def cut(operation):
        def run(*arguments, **options):
            if not left:
                raise PowerCutError
            left.pop()
            return operation(*arguments, **options)

        return run

    own = {"new", "more", CHECKSUMS}
    with monkeypatch.context() as patch, contextlib.suppress(PowerCutError):
        for step in STEPS:
            patch.setattr(os, step, cut(getattr(os, step)))
        patch.setattr(shutil, "rmtree", cut(shutil.rmtree))
        patch.setattr(Path, "unlink", cut(Path.unlink))
        with write_folder(folder, lambda _: own) as fresh:
            for name in ("new", "more"):
                (fresh / name).write_text("new")
    whole = recover_folder(folder)
    assert {(whole / name).read_text() for name in ("new", "more")} in ({"old"}, {"new"})
    assert all(contents(folder)[name] == content for name, content in kept.items())
    with write_folder(folder, lambda _: own) as fresh:
        for name in ("new", "more"):
            (fresh / name).write_text("newer")
    found = {name: content for name, content in contents(folder).items() if not re.search("[0-9a-f]{32}", name)}
    assert found == {"new": "newer", "more": "newer", **kept}


def test_a_file_system_without_hard_links_does_as_well(folder, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    save(folder, new="new")
    assert contents(folder) == {"new": "new"}


def test_the_folder_to_read_is_the_folder_in_peace(folder):
    assert recover_folder(folder) == folder.resolve()
    assert not recover_folder(folder.parent / "never made").exists()


def test_a_folder_behind_a_symlink_can_be_saved_twice(folder):
    link = folder.parent / "link"
    link.symlink_to(folder)
    save(link, new="new")
    save(link, new="newer")
    assert link.is_symlink()
    assert contents(folder) == {"new": "newer"}


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
