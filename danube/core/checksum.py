"""crc32c (Castagnoli) of any buffer: what frames, envelopes and segments are checked with.

The C extension of ``google-crc32c`` (about 27 GB/s) takes only ``bytes`` and read-only exporters
that need no release, so other buffers are wrapped by Arrow, without a copy.
"""

from __future__ import annotations

from typing import Final, cast

import google_crc32c
import pyarrow as pa

from danube.core.stores import Buffer

CRC_BYTES: Final = 4


def crc32c(data: Buffer, crc: int = 0) -> int:
    """The crc32c of ``data``, going on from ``crc`` (0: from the start)."""
    whole = data if type(data) is bytes else pa.py_buffer(data)
    return cast(int, google_crc32c.extend(crc, whole))
