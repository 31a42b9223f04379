"""Freed frames stay with the process, in a process of its own because malloc remembers."""

from __future__ import annotations

import platform
import subprocess
import sys

PROGRAM = """
import resource
from danube.wire.memory import keep_freed_blocks

def faults_of_frames():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        frames = [b"x" * (1024 * 1024 + number) for number in range(5)]
        del frames
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_blocks()
keep_freed_blocks()
faults_of_frames()
print(faults_of_frames())
"""
PAGES_OF_ALL_FRAMES = 50 * 5 * 256


def test_memory_of_freed_frames_is_used_again_instead_of_faulted_in_anew() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )

    faults = int(done.stdout)
    assert faults < PAGES_OF_ALL_FRAMES / 10 or platform.libc_ver()[0] != "glibc"
