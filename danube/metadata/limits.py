"""Bounds of every metadata store, checked the same way in each, and the shape of a transaction.

Metadata holds descriptors and decisions, nothing per message: small keys, small values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from danube.core.errors import InvalidRequest
from danube.core.stores import Compare, Delete, Put

MAX_KEY_BYTES: Final = 4 * 1024
MAX_VALUE_BYTES: Final = 1024 * 1024
MAX_OPERATIONS: Final = 8192
"""Comparisons, and operations, of one transaction."""

HISTORY_EVENTS: Final = 10_000
"""Newest changes that a store keeps for watches to resume from."""


def check_key(key: str) -> None:
    """Raise InvalidRequest unless ``key`` is text of a size that every store takes."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"the metadata key {key!r} is not valid text") from None
    if not 0 < size <= MAX_KEY_BYTES:
        raise InvalidRequest(f"a metadata key has 1 to {MAX_KEY_BYTES} bytes, not {size}")


def check_value(key: str, value: bytes) -> None:
    """Raise InvalidRequest if ``value`` is too large."""
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidRequest(
            f"the metadata value of {key} has {len(value)} bytes; at most {MAX_VALUE_BYTES} fit"
        )


def check_transaction(compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> None:
    """Raise InvalidRequest for a transaction that not every store could carry out.

    A key may be written once in a transaction, because all of it has one revision.
    """
    if len(compares) > MAX_OPERATIONS or len(operations) > MAX_OPERATIONS:
        raise InvalidRequest(
            f"a metadata transaction has at most {MAX_OPERATIONS} comparisons and operations, "
            f"not {len(compares)} and {len(operations)}; split it"
        )
    for compare in compares:
        check_key(compare.key)
    written: set[str] = set()
    for operation in operations:
        check_key(operation.key)
        if isinstance(operation, Put):
            check_value(operation.key, operation.value)
        if operation.key in written:
            raise InvalidRequest(f"a metadata transaction writes {operation.key} twice")
        written.add(operation.key)


def check_ttl(ttl_s: float) -> None:
    """Raise InvalidRequest unless a lease could live for ``ttl_s`` seconds."""
    if not 0 < ttl_s <= 7 * 24 * 3600:
        raise InvalidRequest(f"a lease lives up to a week, not {ttl_s} seconds")
