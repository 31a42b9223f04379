from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from danube.core.batch import TABLE_SCHEMA
from spark_source.schema import SOURCE_DDL
from tests.unit.spark.columns import EVERY


def test_sparks_columns_are_those_of_the_table() -> None:
    written = [part.strip().split(" ", 1) for part in SOURCE_DDL.split(", ")]
    assert [(name, kind) for name, kind in written] == [
        (field.name, field.dataType.simpleString()) for field in EVERY.fields
    ]


def test_the_tables_arrow_types_are_those_that_spark_wants() -> None:
    """So that batches of the table and of frames need no conversion."""
    assert to_arrow_schema(EVERY, timezone="UTC").equals(TABLE_SCHEMA)
    assert pa.types.is_map(TABLE_SCHEMA.field("attributes").type)
