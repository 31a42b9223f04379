"""Fetches the Java archives that tests and benchmarks add to Spark; Danube itself needs none.

Each set lists every archive by name and excludes what they depend on: Spark already has those, and
``spark.jars.packages`` would bring second versions of them. They are fetched by ``mvn`` where there
is one, because that honours the user's own settings and mirrors, and otherwise by the Ivy inside
pyspark. Neither needs a registry to be named here; ``DANUBE_IVY_SETTINGS`` may name a settings
file for Ivy.

Only the standard library and :mod:`danube.testing.java` are imported: ``make jars`` runs this file.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from danube.testing.java import ensure_java

JAR_SETS: dict[str, tuple[str, ...]] = {
    # Version and pip package delta-spark belong together.
    "delta": ("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0"),
}
FETCH_TIMEOUT_S = 900
_STAMP = ".complete"

_DEPENDENCY = """
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""

_POM = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>danube</groupId>
  <artifactId>jars-{name}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""


class JarsMissing(RuntimeError):
    """A set of Java archives is not there or could not be fetched."""


def jars_root() -> Path:
    """Return where the sets lie: ``DANUBE_JARS_DIR``, else ``.cache/jars`` of the checkout."""
    named = os.environ.get("DANUBE_JARS_DIR")
    return Path(named) if named else Path(__file__).resolve().parents[2] / ".cache" / "jars"


def jars(name: str) -> list[Path]:
    """Return the archives of a set, for ``spark.jars`` (joined by commas).

    Raises:
        JarsMissing: the set was not fetched; ``make jars`` does it.
    """
    directory = jars_root() / name
    if _stamp_text(directory) != _coordinates_text(name):
        raise JarsMissing(f"the {name!r} jars are not in {directory}; run: make jars")
    return sorted(directory.glob("*.jar"))


def fetch(name: str) -> Path:
    """Fetch a set unless it is there already, and return its directory.

    Raises:
        JarsMissing: neither ``mvn`` nor Ivy could fetch it; the message holds what both said.
        KeyError: there is no set of that name.
    """
    directory = jars_root() / name
    if _stamp_text(directory) == _coordinates_text(name):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, so that a set appears whole or not at all.
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f"{name}-") as temporary:
        work = Path(temporary)
        (work / "out").mkdir()
        (work / "set.pom").write_text(pom(name))
        _download(name, work / "set.pom", work / "out")
        (work / "out" / _STAMP).write_text(_coordinates_text(name))
        shutil.rmtree(directory, ignore_errors=True)
        (work / "out").rename(directory)
    return directory


def pom(name: str) -> str:
    """Return the Maven project that lists exactly the archives of a set."""
    dependencies = ""
    for coordinate in JAR_SETS[name]:
        group, artifact, version = coordinate.split(":")
        dependencies += _DEPENDENCY.format(group=group, artifact=artifact, version=version)
    return _POM.format(name=name, dependencies=dependencies)


def _download(name: str, project: Path, out: Path) -> None:
    failures: list[str] = []
    for command in (_maven(project, out), _ivy(project, out)):
        if command is None:
            continue
        shutil.rmtree(out)
        out.mkdir()
        failure = _run(command)
        missing = [jar for jar in _file_names(name) if not (out / jar).is_file()]
        if failure is None and not missing:
            return
        failures.append(f"{command[0]}: {failure or f'did not bring {missing}'}")
    raise JarsMissing(
        f"could not fetch the {name!r} jars. Check the network and the proxy or mirror settings of "
        "mvn (or of Ivy: DANUBE_IVY_SETTINGS). Where a company's certificate is in the way, name a "
        "trust store that has it: JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=FILE\n"
        + "\n".join(failures)
    )


def _maven(project: Path, out: Path) -> list[str] | None:
    mvn = shutil.which("mvn")
    if mvn is None:
        return None
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={out}"]
    return [mvn, "-q", "-B", "-f", str(project), *goal]


def _ivy(project: Path, out: Path) -> list[str] | None:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        return None
    java = str(Path(ensure_java()["JAVA_HOME"]) / "bin" / "java")
    settings = os.environ.get("DANUBE_IVY_SETTINGS")
    pattern = f"{out}/[artifact]-[revision](-[classifier]).[ext]"
    command = [java, "-jar", str(found[-1]), "-warn", "-ivy", str(project), "-confs", "runtime"]
    command += ["-types", "jar", "bundle", "-retrieve", pattern]
    return command + (["-settings", settings] if settings else [])


def _run(command: Sequence[str]) -> str | None:
    """Run a fetcher; return nothing on success, else the end of what it said."""
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {FETCH_TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    return (done.stdout + done.stderr).strip()[-2000:] or f"exit code {done.returncode}"


def _file_names(name: str) -> list[str]:
    parts = (coordinate.split(":") for coordinate in JAR_SETS[name])
    return [f"{artifact}-{version}.jar" for _, artifact, version in parts]


def _coordinates_text(name: str) -> str:
    return "\n".join(JAR_SETS[name]) + "\n"


def _stamp_text(directory: Path) -> str | None:
    try:
        return (directory / _STAMP).read_text()
    except FileNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the named sets and print where they lie."""
    parser = argparse.ArgumentParser(description="Fetch the Java archives for tests.")
    parser.add_argument("sets", nargs="+", choices=sorted(JAR_SETS))
    for name in parser.parse_args(arguments).sets:
        try:
            print(f"{name} jars: {fetch(name)}")
        except JarsMissing as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
