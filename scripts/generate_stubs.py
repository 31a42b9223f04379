"""Generate the gRPC stubs of ``proto/`` into ``danube/wire/_generated``.

For every ``proto/Name.proto``: ``Name_pb2.py`` and ``Name_pb2_grpc.py`` by grpcio-tools, and typed
``.pyi`` of both by mypy-protobuf. protoc writes imports as if its output directory were on
``sys.path``; they are rewritten to package-relative ones. The result depends on nothing but
``proto/`` and the versions of the two generators, so a test can compare it with the tree.

    python scripts/generate_stubs.py            # write into danube/wire/_generated
    python scripts/generate_stubs.py --into DIR # write somewhere else
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
TARGET = ROOT / "danube" / "wire" / "_generated"

_INIT = '"""Stubs generated from proto/ by scripts/generate_stubs.py; never edited by hand."""\n'
_IMPORT = re.compile(r"^import (\w+_pb2)( as \w+)?$", re.MULTILINE)


def proto_files(directory: Path = PROTO) -> list[str]:
    """Names of the .proto files in ``directory``, sorted."""
    return sorted(path.name for path in directory.glob("*.proto"))


def _plugin(name: str) -> str:
    """Path of protoc plugin ``name`` as installed beside the running interpreter."""
    scripts = sysconfig.get_path("scripts")
    found = shutil.which(name, path=scripts) or shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed; pip install 'danube-spark[dev]' brings it")
    return found


def _run_protoc(into: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={PROTO}",
        f"--plugin=protoc-gen-mypy={_plugin('protoc-gen-mypy')}",
        f"--plugin=protoc-gen-mypy_grpc={_plugin('protoc-gen-mypy_grpc')}",
        f"--python_out={into}",
        f"--grpc_python_out={into}",
        f"--mypy_out=quiet:{into}",
        f"--mypy_grpc_out=quiet:{into}",
        *proto_files(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"protoc failed:\n{done.stderr}{done.stdout}")


def relative_imports(text: str) -> str:
    """``text`` with protoc's top-level imports of stubs made relative to their package."""
    return _IMPORT.sub(lambda found: f"from . import {found[1]}{found[2] or ''}", text)


def generate(into: Path) -> list[Path]:
    """Generate all stubs into ``into``, replacing what is there, and return their paths, sorted.

    Raises:
        SystemExit: protoc or a plugin is missing or fails; the message holds its output.
    """
    into.mkdir(parents=True, exist_ok=True)
    for stale in [*into.glob("*_pb2*.py"), *into.glob("*_pb2*.pyi")]:
        stale.unlink()
    _run_protoc(into)
    (into / "__init__.py").write_text(_INIT, encoding="utf-8")
    written = sorted([*into.glob("*.py"), *into.glob("*.pyi")])
    for path in written:
        path.write_text(relative_imports(path.read_text(encoding="utf-8")), encoding="utf-8")
    return written


def main() -> None:
    """Command line entry: see the module's text."""
    parser = argparse.ArgumentParser(description="generate the gRPC stubs of proto/")
    parser.add_argument("--into", type=Path, default=TARGET, help="where to write them")
    for path in generate(parser.parse_args().into):
        print(path.name)


if __name__ == "__main__":
    main()
