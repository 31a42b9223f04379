"""Reads ahead of whoever consumes, so that a slow pipe is published line by line, a fast one in
batches: every chunk is what has arrived meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

from danube.cli.inputs import Outgoing


class _End:
    """Says that the input ended, and with which error."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def chunks(
    items: Iterable[Outgoing], *, max_messages: int, max_bytes: int
) -> Iterator[list[Outgoing]]:
    """Non-empty lists of ``items`` in order, each of what was there when it was asked for.

    Args:
        items: consumed in a thread of its own, at most ``max_messages`` ahead.
        max_messages: most messages in a chunk.
        max_bytes: a chunk ends with the message that reaches it.

    Raises:
        BaseException: what ``items`` raised, after everything before it.
    """
    waiting: queue.Queue[Outgoing | _End] = queue.Queue(max_messages)
    threading.Thread(target=_read, args=(items, waiting), name="danube-input", daemon=True).start()
    end: _End | None = None
    while end is None:
        chunk: list[Outgoing] = []
        total = 0
        while len(chunk) < max_messages and total < max_bytes:
            try:
                item = waiting.get(block=not chunk)
            except queue.Empty:
                break
            if isinstance(item, _End):
                end = item
                break
            chunk.append(item)
            total += len(item.value)
        if chunk:
            yield chunk
    if end.error is not None:
        raise end.error


def _read(items: Iterable[Outgoing], waiting: queue.Queue[Outgoing | _End]) -> None:
    try:
        for item in items:
            waiting.put(item)
    except BaseException as error:
        waiting.put(_End(error))
    else:
        waiting.put(_End(None))
