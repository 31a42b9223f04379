"""What every question is given: sizes, a directory on the disk, brokers, an event loop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from benchmarks.measure import Repeats
from benchmarks.processes import Process, start_broker

T = TypeVar("T")
MIB = 1024 * 1024

NO_ROLLS = {"log.roll_age_s": 1e6, "log.roll_bytes": 1 << 40}
"""Settings of a broker that leaves everything in its journal until it is asked to roll."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is run; ``--set NAME=VALUE`` changes one of them."""

    repetitions: int = 5
    warmups: int = 1
    publish_mib: int = 192
    """Values per repetition of the questions about bytes."""
    latency_s: float = 3.0
    """Length of one repetition at half load."""
    messages: int = 200_000
    """Messages per repetition of the questions that go message by message."""
    roll_mib: int = 192
    """Values per roll."""
    rolling_s: float = 4.0
    """Length of one repetition of publishing beside a roller."""
    replay_mib: int = 384
    """Values in the history that Spark replays."""
    sink_mib: int = 192
    """Values that Spark writes per repetition."""
    recovery_mib: int = 1024
    """Values in the journal that is recovered."""
    idle_topics: int = 10_000
    """Topics without traffic, with two subscriptions each."""

    def changed(self, changes: Mapping[str, str]) -> Sizes:
        """With some sizes set, given as text.

        Raises:
            ValueError: there is no such size, or it is not a number.
        """
        types = {field.name: float if "float" in str(field.type) else int for field in fields(self)}
        unknown = changes.keys() - types.keys()
        if unknown:
            raise ValueError(f"no size {', '.join(unknown)}; there are {', '.join(types)}")
        given: dict[str, Any] = {name: types[name](text) for name, text in changes.items()}
        return replace(self, **given)

    def quick(self) -> Sizes:
        """A twentieth of everything, twice: to see that it runs, not to measure."""
        return replace(
            self,
            repetitions=2,
            publish_mib=16,
            latency_s=0.5,
            messages=20_000,
            roll_mib=16,
            rolling_s=1.0,
            replay_mib=16,
            sink_mib=8,
            recovery_mib=64,
            idle_topics=200,
        )


class Bench:
    """One question's surroundings. Everything it starts ends with it."""

    def __init__(self, name: str, sizes: Sizes, directory: Path, console: Console) -> None:
        self.name = name
        self.sizes = sizes
        self.directory = directory
        self._console = console
        self._brokers = 0
        self._runner: asyncio.Runner | None = None

    @property
    def repeats(self) -> Repeats:
        """How often contestants take turns."""
        return Repeats(self.sizes.warmups, self.sizes.repetitions)

    def say(self, text: str) -> None:
        """Tell whoever watches what goes on."""
        self._console.print(f"  {text}", style="dim", highlight=False)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` in the question's event loop, always the same one."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine)

    def new_directory(self, name: str) -> Path:
        """An empty directory that goes away with the question."""
        self._brokers += 1
        path = self.directory / f"{name}-{self._brokers}"
        path.mkdir(parents=True)
        return path

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """An asynchronous context, entered and left in the question's event loop."""
        value = self.wait(manager.__aenter__())
        try:
            yield value
        finally:
            self.wait(manager.__aexit__(None, None, None))

    @contextmanager
    def broker(self, settings: Mapping[str, object] | None = None) -> Iterator[Process]:
        """A fresh broker; its data goes away with it."""
        home = self.new_directory("broker")
        with start_broker(home / "data", settings) as process:
            yield process
        shutil.rmtree(home)

    def close(self) -> None:
        """End the event loop and remove what is left on the disk."""
        if self._runner is not None:
            self._runner.close()
        shutil.rmtree(self.directory, ignore_errors=True)
