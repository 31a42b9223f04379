"""Danube topics as a Spark source, for ``readStream`` and ``read``.

Executors read rolled history from the topic's Parquet files and the tail as frames from brokers.
Nothing heavy is imported here: Spark's planner processes start anew for every query.
"""
