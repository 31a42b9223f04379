"""Progress on stderr, for terminals only; stdout stays the command's result."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Final

from danube.cli.output import size

REFRESH_S: Final = 0.1


class Progress:
    """Counts messages and bytes, and shows both and their rates a few times per second.

    Args:
        what: what is going on, e.g. ``publishing to /demo/flights``.
        total: messages in all where that is known.
        quiet: show nothing, count only.
    """

    def __init__(self, what: str, total: int | None = None, *, quiet: bool = False) -> None:
        self.messages = 0
        self.bytes = 0
        self._what = what
        self._total = total
        self._quiet = quiet
        self._started_s = time.monotonic()
        self._shown_s = 0.0
        self._bar: Any = None
        self._task: Any = None

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._started_s

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and not self._quiet:
            self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._show()
            self._bar.stop()

    def add(self, messages: int, byte_count: int) -> None:
        """Count so many more."""
        self.messages += messages
        self.bytes += byte_count
        if self._bar is not None and time.monotonic() - self._shown_s > REFRESH_S:
            self._show()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = (SpinnerColumn(), TextColumn("{task.description}"))
        bar = (BarColumn(),) if self._total else ()
        self._bar = Bars(
            *columns, *bar, TextColumn("{task.fields[rate]}"), console=Console(stderr=True)
        )
        self._task = self._bar.add_task(self._what, total=self._total, rate="")
        self._bar.start()

    def _show(self) -> None:
        self._shown_s = time.monotonic()
        seconds = max(self.seconds, 1e-6)
        rate = (
            f"{self.messages:,} messages · {self.messages / seconds:,.0f}/s · "
            f"{size(self.bytes)} · {size(self.bytes / seconds)}/s"
        )
        self._bar.update(self._task, completed=self.messages, rate=rate)
