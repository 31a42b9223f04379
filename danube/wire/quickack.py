"""Takes 40 ms off every Spark Python task: TCP_QUICKACK on a worker's sockets.

The JVM writes to the worker in small pieces; with Nagle's algorithm on its side and delayed
acknowledgement on ours every task stalls once. Called while Spark unpickles a reader or writer,
which is before the first byte is read. (Unix sockets, a static conf of Spark's, have no stall.)
"""

from __future__ import annotations

import os
import socket


def quick_ack() -> None:
    """Acknowledge at once on every TCP socket of this process. Does nothing outside of Linux."""
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None or not os.path.isdir("/proc/self/fd"):
        return
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(entry)))
        except OSError:
            continue  # closed meanwhile
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and (
                found.type == socket.SOCK_STREAM
            ):
                try:
                    found.setsockopt(socket.IPPROTO_TCP, option, 1)
                except OSError:
                    pass  # not connected
