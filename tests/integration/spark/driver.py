"""A Spark driver in a process of its own, to be killed: copies one topic into another.

``python -m tests.integration.spark.driver URL SOURCE TARGET CHECKPOINT FAULTS PLACE WORK``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.integration.spark.conftest import build_session
from tests.integration.spark.faulty import FaultySource, inject
from tests.integration.spark.queries import copy, finished


def main(url: str, source: str, target: str, checkpoint: str, faults: str, place: str,
         work: str) -> None:  # fmt: skip
    """Run one AvailableNow query; at ``place`` kill this process and its JVM."""
    spark: Any = build_session(Path(work))
    spark.dataSource.register(FaultySource)
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    if place != "nowhere":
        inject(Path(faults), place, f"kill {jvm} {os.getpid()}")
    query = copy(
        spark, url, source, target, Path(checkpoint), format=FaultySource.name(), faultDir=faults
    )
    finished(query)


if __name__ == "__main__":
    main(*sys.argv[1:])
