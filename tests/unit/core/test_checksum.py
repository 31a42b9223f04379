"""crc32c: the published check value, over any buffer and in pieces."""

from __future__ import annotations

import pytest

from danube.core.checksum import crc32c
from danube.core.stores import Buffer

DIGITS = b"123456789"


@pytest.mark.parametrize(
    "data", [DIGITS, bytearray(DIGITS), memoryview(DIGITS), memoryview(b"x" + DIGITS + b"y")[1:-1]]
)
def test_the_check_value_of_rfc_3720(data: Buffer) -> None:
    assert crc32c(data) == 0xE306_9283


def test_pieces_give_the_crc_of_the_whole() -> None:
    assert crc32c(DIGITS[4:], crc32c(DIGITS[:4])) == crc32c(DIGITS)
    assert crc32c(b"") == 0
