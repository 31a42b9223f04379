"""One Delta table per topic: committer, Parquet writer, snapshots of files, range reader.

Knows neither metadata nor brokers: batches, epochs and stores are arguments. Import the module you
need; this package loads nothing, because Spark executors import ``danube.lake.reader`` alone.
"""
