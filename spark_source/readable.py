"""Errors as Spark's users see them: only the text of a traceback crosses to the JVM.

So the last line has to be the whole message, in one line, without a chain of causes behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from danube.core.errors import DanubeError, in_one_line

P = ParamSpec("P")
T = TypeVar("T")


def readable_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls: its DanubeErrors get one line and no cause."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except DanubeError as error:
            raise in_one_line(error) from None

    return call


def readable_iterator(items: Iterator[T]) -> Iterator[T]:
    """The same for what an iterator raises."""
    try:
        yield from items
    except DanubeError as error:
        raise in_one_line(error) from None
