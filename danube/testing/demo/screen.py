"""What the demo shows while it runs: bars in a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY_S: Final = 5.0
PIPE_WIDTH: Final = 200


def console() -> Console:
    """A console; where no terminal says how wide it is, lines are long rather than broken."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


class Screen:
    """Bars by name, and events above them, each with the second it happened in."""

    def __init__(self, totals: dict[str, int]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        self.console = console()
        self._began = time.monotonic()
        self._lined_s = 0.0
        self._totals = totals
        self._values = dict.fromkeys(totals, 0)
        self._notes = dict.fromkeys(totals, "")
        self._live = sys.stdout.isatty()
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not self._live,
        )
        self._tasks: dict[str, Any] = {
            name: self._bars.add_task(name, total=total, note="") for name, total in totals.items()
        }

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began

    def __enter__(self) -> Screen:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def event(self, text: str, style: str = "") -> None:
        """Something that happened once."""
        from rich.text import Text

        line = Text.assemble((f"{self.seconds:6.1f} s  ", "dim"), (text, style))
        self.console.print(line)

    def show(self, name: str, value: int, note: str = "") -> None:
        """A bar's present value."""
        self._values[name], self._notes[name] = value, note
        if self._live:
            self._bars.update(self._tasks[name], completed=value, note=note)

    def tick(self) -> None:
        """Where there are no bars: a line with all values, every few seconds."""
        if self._live or time.monotonic() - self._lined_s < LINE_EVERY_S:
            return
        self._lined_s = time.monotonic()
        values = " · ".join(
            f"{name} {value:,}/{self._totals[name]:,}" for name, value in self._values.items()
        )
        self.event(values)
