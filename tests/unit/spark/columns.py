"""Spark schemas without a JVM (``StructType.fromDDL`` needs one)."""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from danube.core.batch import TABLE_SCHEMA

EVERY = from_arrow_schema(TABLE_SCHEMA)


def columns(*names: str) -> StructType:
    """Some of the source's columns; all without names."""
    return StructType([EVERY[name] for name in names]) if names else EVERY


def column(name: str, type_: str) -> StructField:
    """One column of a simple type, such as ``bigint``."""
    return StructField.fromJson({"name": name, "type": type_, "nullable": True, "metadata": {}})
