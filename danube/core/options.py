"""Options as Spark hands them over: one flat mapping of texts whose names have lost their case.

A misspelt option that is silently ignored is a query that reads the wrong thing, so names that
look like ours are refused with the nearest one that exists. Others are left alone: Spark passes
its own (``checkpointLocation``, ``queryName``, ``path``) in the same mapping.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Final, overload

from danube.core.errors import InvalidSettings

SPARK_OPTIONS: Final = frozenset(
    {"checkpointlocation", "path", "queryname", "outputmode", "asyncprogresstrackingenabled"}
)
"""Names of Spark's own, lower-cased, that are never taken for a misspelling of ours."""

_NEAR: Final = 0.8
_TRUE: Final = frozenset({"true", "1", "yes"})
_FALSE: Final = frozenset({"false", "0", "no"})


class OptionReader:
    """Typed access to one mapping of options.

    Args:
        options: names (any case) to texts.
        known: the names that exist, written as in the documentation.
        refused: names that users may bring along from elsewhere, each with what to do instead.

    Raises:
        InvalidSettings: a name is refused, or looks like a known one and is not.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        known: Collection[str],
        refused: Mapping[str, str] | None = None,
    ) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known_lower = {name.lower(): name for name in known}
        refused_lower = {name.lower(): (name, why) for name, why in (refused or {}).items()}
        for name in sorted(self._values.keys() - known_lower.keys() - SPARK_OPTIONS):
            if name in refused_lower:
                written, why = refused_lower[name]
                raise InvalidSettings(f"the option {written!r} cannot be used: {why}")
            near = difflib.get_close_matches(name, known_lower, n=1, cutoff=_NEAR)
            if near:
                raise InvalidSettings(
                    f"there is no option {name!r}; did you mean {known_lower[near[0]]!r}?"
                )

    @overload
    def text(self, name: str) -> str | None: ...
    @overload
    def text(self, name: str, default: str) -> str: ...
    def text(self, name: str, default: str | None = None) -> str | None:
        """The option's text without space around it, or ``default``."""
        value = self._values.get(name.lower())
        return default if value is None else value.strip()

    def required(self, name: str, example: str) -> str:
        """The option's text. Raises InvalidSettings when it is absent or empty."""
        value = self.text(name)
        if not value:
            raise InvalidSettings(
                f"the option {name!r} is missing; set it, for example to {example}"
            )
        return value

    @overload
    def whole(self, name: str, *, minimum: int) -> int | None: ...
    @overload
    def whole(self, name: str, default: int, *, minimum: int) -> int: ...
    def whole(self, name: str, default: int | None = None, *, minimum: int) -> int | None:
        """A whole number of at least ``minimum``. Raises InvalidSettings on anything else."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise InvalidSettings(
                f"the option {name!r} is {value!r}; give a whole number of at least {minimum}"
            )
        return number

    def flag(self, name: str, default: bool) -> bool:
        """``true`` or ``false``. Raises InvalidSettings on anything else."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
        raise InvalidSettings(f"the option {name!r} is {value!r}; give true or false")
