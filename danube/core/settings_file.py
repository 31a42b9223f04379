"""Settings as text: the commented example of a model, and what a process really runs with.

Both are TOML that :func:`danube.core.settings.load` takes back, so the example in ``conf/`` can be
compared with the models by a test, and ``--print-config`` can be copied into a file.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, Final

from pydantic import BaseModel

from danube.core.settings import HIDDEN, Loaded, Option, load

WIDTH: Final = 98


def example(model_type: type[BaseModel], header: str = "") -> str:
    """Return a file that names every option with its help and default, all commented out."""
    options = load(model_type, None, {}, {}).options
    blocks = [_comment(header)] if header else []
    for section, members in _sections(options):
        lines = _heading(model_type, section)
        for option in members:
            if option.help:
                lines += ["", _comment(option.help)] if lines else [_comment(option.help)]
            lines.append(_assignment(option, disabled=True))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def effective(loaded: Loaded[Any]) -> str:
    """Return what was loaded, each value with where it came from; secrets are hidden."""
    blocks = []
    for section, members in _sections(loaded.options):
        lines = [f"[{section}]"] if section else []
        lines += [f"{_assignment(option, disabled=False)}  # {option.origin}" for option in members]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _heading(model_type: type[BaseModel], section: str) -> list[str]:
    """Return a section's own help and its name; nothing for options without a section."""
    if not section:
        return []
    model, text = model_type, ""
    for name in section.split("."):
        field = model.model_fields[name]
        text = field.description or ""
        assert isinstance(field.annotation, type)
        model = field.annotation
    return ([_comment(" ".join(text.split()))] if text else []) + [f"[{section}]"]


def _sections(options: Iterable[Option]) -> list[tuple[str, list[Option]]]:
    """Group options by section; the ones without come first, as TOML wants it."""
    grouped: dict[str, list[Option]] = {"": []}
    for option in options:
        grouped.setdefault(option.key.rpartition(".")[0], []).append(option)
    return [(section, members) for section, members in grouped.items() if members]


def _assignment(option: Option, *, disabled: bool) -> str:
    name = option.key.rpartition(".")[2]
    # TOML has no word for nothing, and a hidden secret is not a value.
    if option.value is None:
        return f"# {name} = (none)" if disabled else f"# {name} is not set"
    if option.value == HIDDEN:
        return f"# {name} = (hidden)"
    return f"{'# ' if disabled else ''}{name} = {_toml(option.value)}"


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Enum():
            return _toml(value.value)
        case int() | float():
            return repr(value)
        case str() | PurePath():
            # A JSON string is a TOML basic string.
            return json.dumps(str(value), ensure_ascii=False)
        case Mapping():
            pairs = (f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list() | tuple() | set() | frozenset():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case _:
            return json.dumps(str(value), ensure_ascii=False)


def _comment(text: str) -> str:
    paragraphs = (
        textwrap.fill(part, WIDTH, initial_indent="# ", subsequent_indent="# ") if part else "#"
        for part in text.splitlines()
    )
    return "\n".join(paragraphs)
