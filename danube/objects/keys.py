"""Which keys an object store takes, and how their prefixes work."""

from __future__ import annotations

from danube.core.errors import InvalidRequest

MAX_KEY_BYTES = 1024
"""S3's bound, kept everywhere."""


def check_key(key: str) -> str:
    """Return the key if every store can hold it.

    Raises:
        InvalidRequest: empty, longer than 1024 bytes, with an empty part, or with a part that
            starts with a dot (those are a store's own, and ``..`` would leave its root).
    """
    parts = key.split("/")
    if any(not part or part.startswith(".") or "\0" in part for part in parts):
        raise InvalidRequest(
            f"{key!r} is not an object key; write parts/like/these, none empty or dotted"
        )
    if len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidRequest(f"the object key {key[:60]!r}… is longer than {MAX_KEY_BYTES} bytes")
    return key
