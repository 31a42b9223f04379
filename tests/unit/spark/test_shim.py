"""The module Spark finds by itself."""

from __future__ import annotations

import inspect
import subprocess
import sys

from pyspark.sql.datasource import DataSource

import pyspark_danube
from pyspark_danube import DefaultSource


def test_the_source_is_called_danube() -> None:
    assert DefaultSource.name() == "danube"
    assert inspect.ismethod(DefaultSource.name)
    assert issubclass(DefaultSource, DataSource)


def test_arguments_have_the_names_that_spark_passes() -> None:
    for method, names in {
        "reader": ["self", "schema"],
        "streamReader": ["self", "schema"],
        "writer": ["self", "schema", "overwrite"],
        "streamWriter": ["self", "schema", "overwrite"],
    }.items():
        assert list(inspect.signature(getattr(DefaultSource, method)).parameters) == names


def test_finding_it_imports_nothing_of_ours() -> None:
    """One `pyspark_…` module that fails to import hides every Python data source."""
    code = (
        "import sys, pyspark.sql.datasource\n"
        "before = set(sys.modules)\n"
        "import pyspark_danube\n"
        "print(sorted(set(sys.modules) - before))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert out.stdout.strip() == "['pyspark_danube']"
    assert pyspark_danube.__doc__
