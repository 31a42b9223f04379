from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "danube" / "wire" / "_generated"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = ROOT / "scripts" / "generate_stubs.py"
    spec = importlib.util.spec_from_file_location("generate_stubs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def content(directory: Path) -> dict[str, str]:
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted(directory.iterdir())
        if path.suffix in (".py", ".pyi")
    }


def test_the_stubs_in_the_tree_belong_to_the_protos(generator: ModuleType, tmp_path: Path) -> None:
    generator.generate(tmp_path)
    fresh, committed = content(tmp_path), content(GENERATED)
    assert sorted(fresh) == sorted(committed), "run `make proto`"
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert not stale, f"run `make proto`: {stale} are not what proto/ says"


def test_every_proto_has_all_four_stubs(generator: ModuleType) -> None:
    endings = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
    expected = {
        name.removesuffix(".proto") + ending
        for name in generator.proto_files()
        for ending in endings
    }
    assert {path.name for path in GENERATED.iterdir() if "_pb2" in path.name} == expected


def test_imports_between_stubs_stay_inside_the_package(generator: ModuleType) -> None:
    text = "import DanubeApi_pb2 as DanubeApi__pb2\nimport abc as _abc\n"
    assert generator.relative_imports(text) == (
        "from . import DanubeApi_pb2 as DanubeApi__pb2\nimport abc as _abc\n"
    )


def test_stubs_import_from_anywhere_without_a_warning(tmp_path: Path) -> None:
    names = [path.stem for path in GENERATED.glob("*_grpc.py")]
    imports = "; ".join(f"import danube.wire._generated.{name}" for name in names)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", imports],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
