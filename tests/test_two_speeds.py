"""Unit tests run without what only other tests need, and a run says what it left out."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ROOT

UNIT_TESTS = re.search(r"-m \"(.+?)\" tests vse_demo", (ROOT / "Makefile").read_text())[1]
ONLY_FOR_OTHERS = ("nbval.plugin", "nbformat", "IPython", "jupyterlab", "playwright", "faiss", "tensorboard")
MADE = """\
import pytest

def test_quick(): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.fixture
def browser(): pytest.skip("no browser: install one")

def test_page(browser): pass
"""


def run_made_tests(folder: Path, start_python: Callable, *arguments: str) -> str:
    """What pytest prints about `MADE`, with the settings of the project."""
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "test_made.py").write_text(MADE)
    settings = "-c", ROOT / "pyproject.toml", "--rootdir", folder, "-p", "no:cacheprovider"
    return start_python("-m", "pytest", *settings, *arguments, folder / "test_made.py").communicate(timeout=120)[0]


@pytest.mark.slow
def test_unit_tests_leave_out_markers_and_say_how_to_run_them(tmp_path: Path, start_python: Callable) -> None:
    printed = run_made_tests(tmp_path, start_python, "-m", UNIT_TESTS)
    assert "1 passed, 2 deselected" in printed
    assert "left out by their markers: 1 slow, 1 browser. Everything runs with: make test" in printed


@pytest.mark.slow
def test_a_full_run_says_what_was_skipped_and_why(tmp_path: Path, start_python: Callable) -> None:
    printed = run_made_tests(tmp_path, start_python)
    assert "2 passed, 1 skipped" in printed
    assert "1 skipped: no browser: install one" in printed
    assert "left out" not in printed


@pytest.mark.slow
def test_unit_tests_are_found_without_the_packages_that_only_other_tests_need(
    tmp_path: Path, start_python: Callable
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({ONLY_FOR_OTHERS})\n")
    arguments = "--collect-only", "-q", "-p", "no:nbval", "-p", "no:cacheprovider", "-m", UNIT_TESTS
    run = start_python(
        "-m", "pytest", "--rootdir", ROOT, *arguments, ROOT / "tests", ROOT / "vse_demo", PYTHONPATH=str(tmp_path)
    )
    printed = run.communicate(timeout=300)[0]
    assert run.returncode == 0, printed
    assert "test_pooling.py::" in printed
    assert "test_plots.py::" in printed
