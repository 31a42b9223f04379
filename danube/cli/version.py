"""``danube version``."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from danube.cli.options import Output
from danube.cli.output import OutputFormat, print_record

_PARTS = ("grpcio", "protobuf", "pyarrow", "deltalake", "pyspark")


def version(output: Output = OutputFormat.TABLE) -> None:
    """Print the version of Danube for Spark, of Python, and of what it stands on."""
    record = {"danube-spark": _version_of("danube-spark"), "python": platform.python_version()}
    record |= {name: _version_of(name) for name in _PARTS}
    print_record(record, output)


def _version_of(name: str) -> str | None:
    try:
        return installed_version(name)
    except PackageNotFoundError:
        return None
