"""The jar sets: pinned with the pip package, listed one by one, there as a whole or not at all."""

from __future__ import annotations

import importlib.metadata
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from danube.testing import jars
from danube.testing.jars import JAR_SETS, JarsMissing


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_JARS_DIR", str(tmp_path / "jars"))


def test_the_delta_jars_have_the_version_of_the_pip_package() -> None:
    version = importlib.metadata.version("delta-spark")
    assert {coordinate.rpartition(":")[2] for coordinate in JAR_SETS["delta"]} == {version}


def test_the_project_lists_each_jar_and_excludes_what_it_depends_on() -> None:
    namespace = {"m": "http://maven.apache.org/POM/4.0.0"}
    project = ElementTree.fromstring(jars.pom("delta"))
    dependencies = project.findall("m:dependencies/m:dependency", namespace)
    names = [dependency.findtext("m:artifactId", None, namespace) for dependency in dependencies]
    assert names == ["delta-spark_4.2_2.13", "delta-storage"]
    for dependency in dependencies:
        excluded = dependency.find("m:exclusions/m:exclusion", namespace)
        assert excluded is not None
        assert [child.text for child in excluded] == ["*", "*"]


def test_a_set_that_was_not_fetched_says_how_to_fetch_it() -> None:
    with pytest.raises(JarsMissing, match="run: make jars"):
        jars.jars("delta")


def write_maven(directory: Path, script: str) -> Path:
    maven = directory / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(
        f"#!/bin/sh\nfor a; do case $a in -Dout*) out=${{a#*=}};; esac; done\n{script}"
    )
    maven.chmod(0o755)
    return maven.parent


def test_a_fetched_set_is_found_and_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "$out/delta-spark_4.2_2.13-4.4.0.jar $out/delta-storage-4.4.0.jar"
    path = write_maven(tmp_path, f"/usr/bin/env touch {names}\n")
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    directory = jars.fetch("delta")
    (path / "mvn").unlink()
    assert jars.fetch("delta") == directory
    assert [file.parent for file in jars.jars("delta")] == [directory, directory]
    assert [file.name for file in directory.parent.iterdir()] == ["delta"]


def test_a_fetch_that_brings_only_half_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_maven(tmp_path, "/usr/bin/env touch $out/delta-storage-4.4.0.jar\n")
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    monkeypatch.setattr(jars, "_ivy", lambda project, out: None)
    with pytest.raises(JarsMissing, match=r"did not bring .*delta-spark"):
        jars.fetch("delta")
    assert list(jars.jars_root().iterdir()) == []
