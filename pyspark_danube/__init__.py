"""Spark finds ``format("danube")`` here: it imports every top-level module named ``pyspark_…``.

Everything heavy is imported where it is used, because one module that fails to import hides all
Python data sources from Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_sink.writers import DanubeBatchWriter, DanubeStreamWriter
    from spark_source.batch import DanubeBatchReader
    from spark_source.stream import DanubeStreamReader


class DefaultSource(DataSource):
    """Danube topics for ``read``, ``readStream``, ``write`` and ``writeStream``."""

    @classmethod
    def name(cls) -> str:
        """What ``format()`` takes."""
        return "danube"

    def schema(self) -> str:
        """The columns of every topic."""
        from spark_source.options import SourceOptions
        from spark_source.schema import SOURCE_DDL

        SourceOptions.parse(self.options)  # a slip in an option shows at load()
        return SOURCE_DDL

    # Spark passes these arguments by name, so their names are part of the interface.

    def reader(self, schema: StructType) -> DanubeBatchReader:
        """For ``spark.read``."""
        from spark_source.batch import DanubeBatchReader
        from spark_source.options import SourceOptions

        return DanubeBatchReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DanubeStreamReader:
        """For ``spark.readStream``."""
        from spark_source.options import SourceOptions
        from spark_source.stream import DanubeStreamReader

        return DanubeStreamReader(SourceOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DanubeBatchWriter:
        """For ``df.write``."""
        from spark_sink.options import SinkOptions
        from spark_sink.writers import DanubeBatchWriter

        return DanubeBatchWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DanubeStreamWriter:
        """For ``df.writeStream``."""
        from spark_sink.options import SinkOptions
        from spark_sink.writers import DanubeStreamWriter

        return DanubeStreamWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)
