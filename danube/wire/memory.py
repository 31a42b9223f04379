"""Keeps glibc from giving every frame's memory back to the kernel.

malloc maps blocks of 128 KiB and more from the kernel and unmaps them when they are freed, so each
1 MiB frame pays for some 250 page faults, several times over on its way through gRPC. It raises
that threshold by itself once a larger block was freed (mallopt(3), "M_MMAP_THRESHOLD"), up to
32 MiB. Freeing one such block, which is never touched, is all there is to do: it halved the
processor time of publishing 1 MiB frames. At most 64 MiB of freed memory stay with the process.
"""

from __future__ import annotations

from typing import Final

from danube.core.limits import MIB

LARGEST_BLOCK_BYTES: Final = 32 * MIB - 64 * 1024
"""Just below where glibc stops to learn (DEFAULT_MMAP_THRESHOLD_MAX), with room for its header."""

_done = False


def keep_freed_blocks() -> None:
    """Let freed frames be used again. Costs microseconds, once; harmless where malloc differs."""
    global _done
    if not _done:
        _done = True
        # Zeroed memory comes straight from the kernel, so nothing is written here.
        bytes(LARGEST_BLOCK_BYTES)
