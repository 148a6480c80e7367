"""What README and docs show runs as it stands, and their tables and links are true."""

import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects
from support import HANGS, ROOT, environment

from benchmarks.run import as_table
from benchmarks.timing import Row
from vse_demo.utils.paths import shipped

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]


def blocks(language: str, text: str = README) -> list[str]:
    """The code blocks of a language, in their order."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_the_first_example_prints_what_stands_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("python")[0], {})
    assert capsys.readouterr().out == blocks("text")[0]


def test_the_idea_in_a_few_lines_runs_and_gives_a_sensible_loss() -> None:
    names: dict[str, object] = {}
    exec(blocks("python")[1], names)
    assert 0 < names["terms"].loss.item() < 20  # type: ignore[attr-defined]
    assert all(weight.grad is not None for weight in names["pool"].parameters())  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_example_from_python_runs_on_a_fresh_clone() -> None:
    names: dict[str, Any] = {}
    [example] = [block for block in blocks("python") if "Gallery.build" in block]
    exec(example, names)
    assert len(names["gallery"]) == len(names["photos"])


@pytest.mark.slow
def test_the_commands_that_need_no_network_run_for_a_new_user(tmp_path: Path) -> None:
    photos = sorted((shipped("gallery") / "images").iterdir())[:4]
    (tmp_path / "my_photos").mkdir()
    for photo in photos:
        shutil.copy(photo, tmp_path / "my_photos")
    shutil.copy(photos[0], tmp_path / "dunes.jpg")
    new_user = environment(HOME=str(tmp_path / "home"))
    for name in ("VSE_DEMO_CACHE", "XDG_CACHE_HOME", "HF_HOME"):
        new_user.pop(name, None)

    def run(line: str) -> list[str]:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "vse-demo"
        command = [sys.executable, "-m", "vse_demo", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=new_user, capture_output=True, text=True, timeout=HANGS)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    [block] = [block for block in blocks("bash") if "vse-demo index" in block]
    commands = itertools.takewhile(lambda line: not line.startswith("vse-demo download"), block.splitlines())
    shipped_hits, [indexed], hits, paths = map(run, commands)
    assert len(shipped_hits) == 5
    assert all(Path(line.split("  ")[-1]).is_file() for line in shipped_hits)
    assert indexed.startswith("my_gallery: 4 images added")
    mine = {str(tmp_path / "my_photos" / photo.name) for photo in photos}
    assert {line.split("  ")[-1] for line in hits} == set(paths) == mine


def test_the_first_screen_has_a_sentence_a_figure_two_commands_and_an_example() -> None:
    screen = README.splitlines()[:35]
    assert screen[2].endswith(".")
    assert screen[4].startswith("![")
    assert [line.split("#")[0].split() for line in screen if line.startswith("make")] == [
        ["make", "app"],
        ["make", "check"],
    ]
    assert "```text" in screen


def test_the_table_of_speed_is_what_was_measured() -> None:
    measured = json.loads((shipped("") / "benchmark.json").read_text(encoding="utf-8"))
    table = as_table([Row(**row) for row in measured["rows"]])
    assert table in (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")


def test_a_space_gets_every_module_and_every_asset() -> None:
    command = next(line for block in blocks("bash") for line in block.splitlines() if line.startswith("hf upload"))
    words = shlex.split(command)
    patterns = [words[number + 1] for number, word in enumerate(words) if word == "--include"]
    wanted = {path for folder in ("vse_demo", "assets") for path in (ROOT / folder).rglob("*") if path.is_file()}
    names = {path.relative_to(ROOT).as_posix() for path in wanted} | {"app.py", "requirements.txt"}
    assert set(filter_repo_objects(names, allow_patterns=patterns)) == names


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target
