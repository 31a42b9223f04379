"""Exit codes that scripts can rely on, and which error ends in which."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from danube.core import errors
from danube.core.errors import DanubeError


class Exit(IntEnum):
    """What ``danube`` ends with. Codes are never given another meaning."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    PRECONDITION = 5
    EXHAUSTED = 6
    DAMAGED = 7
    INTERRUPTED = 130


_CODES: Final[tuple[tuple[type[DanubeError], Exit], ...]] = (
    (errors.InvalidRequest, Exit.USAGE),
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.Unavailable, Exit.UNAVAILABLE),
    (errors.AlreadyExists, Exit.PRECONDITION),
    (errors.FailedPrecondition, Exit.PRECONDITION),
    (errors.ResourceExhausted, Exit.EXHAUSTED),
    (errors.OutOfRange, Exit.DAMAGED),
    (errors.Corruption, Exit.DAMAGED),
)

EXPLANATION: Final = """\
Exit codes: 0 done; 1 failed, or verify found something; 2 wrong usage or input; 3 no such topic,
subscription or sink; 4 no broker answers; 5 the state forbids it (already exists, busy, fenced);
6 a bound was reached (disk, memory); 7 offsets out of range, data lost or damaged; 130 interrupted.
"""


def exit_code(error: DanubeError) -> Exit:
    """The exit code for ``error``; 1 where none is more telling."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAILED)
