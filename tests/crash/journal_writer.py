"""A process for kill -9: writes entries to a journal and says which ones are durable.

Standard output gets one line per acknowledged entry, written before anything else happens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from danube.journal.envelope import Entry, EntryKind, Position
from danube.journal.journal import Journal
from danube.journal.settings import JournalSettings

SETTINGS = JournalSettings(
    segment_bytes=256 * 1024,
    flush_bytes=64 * 1024,
    disk_reserve_bytes=0,
    checkpoint_segments=2,
    idle_flush_ms=2,
)


def body(number: int) -> bytes:
    """An entry's body: its number, and a length that depends on it."""
    return b'{"t":"n","n":%d,"x":"%s"}' % (number, b"x" * (number * 37 % 3_000))


def main(directory: str, first: int) -> None:
    """Write for ever, from number ``first`` on."""
    journal = Journal.open(Path(directory), SETTINGS, broker_id="crash")
    for _ in journal.recover():
        pass
    journal.start()

    def acknowledged(number: int, outcome: Sequence[Position] | BaseException) -> None:
        if isinstance(outcome, BaseException):
            os._exit(3)
        os.write(1, b"%d\n" % number)

    number = first
    while True:
        entry = Entry(EntryKind.STATE, body(number), base_offset=number)
        try:
            journal.submit([entry], lambda outcome, n=number: acknowledged(n, outcome))  # type: ignore[misc]
        except Exception:
            # The queue is full: a writer that never waits meets its bound.
            continue
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
