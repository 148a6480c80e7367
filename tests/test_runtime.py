"""What importing the package does to a program, and what its own programs ask for."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vse_demo
from vse_demo.retrieval import cluster
from vse_demo.utils import runtime


def answer(program: str, **environment: str) -> str:
    """What a fresh interpreter prints, without a GOMP_SPINCOUNT of ours."""
    inherited = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**inherited, **environment})
    return run.stdout.strip()


@pytest.mark.slow
def test_importing_the_package_loads_no_pytorch_and_sets_nothing() -> None:
    program = "import os, sys, vse_demo; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    assert answer(program) == "False None"
    assert answer("import os, vse_demo.pooling; print(os.environ.get('GOMP_SPINCOUNT'))") == "None"


@pytest.mark.slow
def test_tuning_comes_before_pytorch() -> None:
    program = "import os, sys, vse_demo; vse_demo.tune_process(); print('torch' in sys.modules, os.environ['{}'])"
    assert answer(program.format("GOMP_SPINCOUNT")) == f"False {runtime.SPIN_COUNT}"
    assert answer(program.format("GOMP_SPINCOUNT"), GOMP_SPINCOUNT="7") == "False 7"


def test_tuning_after_pytorch_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", object())
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setattr(runtime, "keep_memory", lambda: True)
    vse_demo.tune_process()
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is found on Linux")
def test_kept_memory_stays_with_the_process() -> None:
    program = (
        "from vse_demo.utils.runtime import keep_memory\n"
        "if {keep}: assert keep_memory()\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "before = resident()\n"
        "data = bytearray(b'x') * 100_000_000; del data\n"
        "print(resident() - before > 50_000_000)"
    )
    assert answer(program.format(keep=True)) == "True"
    assert answer(program.format(keep=False)) == "False"


def test_workers_of_a_cluster_keep_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(cluster, "keep_memory", lambda: told.append("kept"))
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    cluster.PictureEncoder(lambda: object())  # type: ignore[arg-type, return-value]
    assert told == ["kept"]


@pytest.mark.slow
@pytest.mark.parametrize("model", vse_demo.list_models())
def test_a_search_by_a_sentence_loads_no_image_network_and_compiles_nothing(model: str) -> None:
    program = (
        "import sys; from vse_demo.cli import main\n"
        "assert main(['search', 'a dog on the beach', '--model', '{}', '-k', '1']) == 0\n"
        "print({{'timm', 'torchvision', 'transformers', 'torch._dynamo', 'scipy.linalg'}} & set(sys.modules))"
    )
    hit, loaded = answer(program.format(model)).splitlines()
    assert hit.endswith(".jpg")
    assert loaded == "set()"


def test_where_there_is_no_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.ctypes, "CDLL", lambda name: object())
    assert not runtime.keep_memory()
    monkeypatch.setattr(runtime.sys, "platform", "darwin")
    assert not runtime.keep_memory()


@pytest.mark.parametrize("name", vse_demo.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(vse_demo, name) is not None
    assert name in dir(vse_demo)


def test_editors_are_told_the_names_that_are_loaded_on_demand() -> None:
    tree = ast.parse(Path(vse_demo.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "vse_demo" in str(node.module)]
    told = {(alias.name, str(node.module)) for node in imports for alias in node.names}
    assert told == {(name, f"vse_demo.{module}") for name, module in vse_demo._MODULE_OF.items()}
    assert sorted(vse_demo._MODULE_OF) == sorted(vse_demo.__all__)


@pytest.mark.slow
def test_submodules_are_loaded_on_demand_and_other_names_are_errors() -> None:
    assert answer("import vse_demo; from vse_demo import plots; print(plots.__name__, vse_demo.ops.__name__)") == (
        "vse_demo.plots vse_demo.ops"
    )
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        vse_demo.nothing  # noqa: B018
