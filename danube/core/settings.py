"""Typed settings: one model per room, loaded in layers, every value with its origin.

A room subclasses :class:`Settings` and takes an instance as an argument. The process composes them
and loads the whole with :func:`load`: a TOML file is overridden by the environment
(``DANUBE_<SECTION>__<KEY>``), and that by flags. Unknown keys are refused in all three, with the
nearest key that exists. Building a model in code reads nothing but its arguments.

Every number has its unit at the end of its name (``roll_age_ms``, ``segment_bytes``);
:func:`options_without_unit` finds those that have not, for a test.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Generic, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from danube.core.errors import InvalidSettings

ENVIRONMENT_PREFIX: Final = "DANUBE_"
# Variables of ours that are not settings of a process: those of the client, of tests, of the demo.
OTHER_PREFIXES: Final = ("CLIENT_", "CLI_", "TEST_", "DEMO_", "JARS_", "IVY_", "BENCH_")
UNITS: Final = frozenset(
    {"bytes", "us", "ms", "s", "seconds", "minutes", "hours", "days", "ratio", "percent", "port"}
    | {"count", "rows", "messages", "frames", "flushes", "segments", "topics", "partitions"}
    | {"entries", "epochs", "offsets", "attempts", "level"}
)
HIDDEN: Final = "**********"
DEFAULT: Final = "default"


class Settings(BaseSettings):
    """Base of every room's settings: immutable, unknown names refused, no hidden sources."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take arguments only: a model built in a test must not depend on the environment."""
        return (init_settings,)


ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as it came out.

    ``key`` is dotted (``journal.segment_bytes``), ``value`` printable (a secret is hidden),
    ``origin`` is ``default``, ``file PATH``, ``environment NAME`` or ``flag --key``, and ``help``
    the docstring of the field.
    """

    key: str
    value: object
    origin: str
    help: str


@dataclass(frozen=True, slots=True)
class Loaded(Generic[ModelT]):
    """A model and where each of its values came from, in the order of its fields."""

    model: ModelT
    options: tuple[Option, ...]

    def option(self, key: str) -> Option:
        """Return one option by its dotted key; ``KeyError`` if there is none."""
        for option in self.options:
            if option.key == key:
                return option
        raise KeyError(key)


@dataclass(frozen=True, slots=True)
class _Given:
    """A value that a layer holds for a key; ``text`` if it still has to be read as the type."""

    value: object
    origin: str
    text: bool


def load(
    model_type: type[ModelT],
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, str],
) -> Loaded[ModelT]:
    """Load a model from a file (TOML), the environment and flags; later ones win.

    Args:
        model_type: the model of the whole process; sections are fields that are models.
        file: the configuration file, or none.
        environ: variables; those that start with ``DANUBE_`` are settings, ``__`` is a dot.
        flags: dotted keys to texts.

    Lists are written ``["a", "b"]`` or ``a,b`` in variables and flags, mappings as JSON, and
    ``none`` empties an optional value.

    Raises:
        InvalidSettings: a key that does not exist, a value that does not fit, or a file that
            cannot be read. The message names key, origin and what would fit; never a secret.
    """
    fields = dict(_leaves(model_type))
    given: dict[str, _Given] = {}
    problems: list[str] = []
    for layer in (_from_file(file, fields), _from_environ(environ), _from_flags(flags)):
        for key, value in layer:
            if key in fields:
                given[key] = value
            else:
                problems.append(_unknown(key, value.origin, fields))
    if problems:
        raise InvalidSettings("\n".join(problems))
    model = _build(model_type, fields, given)
    return Loaded(model, tuple(_options(model, fields, given)))


def options_without_unit(model_type: type[BaseModel]) -> list[str]:
    """Return the dotted keys of numbers whose name does not end in a unit."""
    return [
        key
        for key, field in _leaves(model_type)
        if _is_number(field.annotation)
        and key.rpartition("_")[2] not in UNITS
        # A name that is a unit by itself: `port`.
        and key.rpartition(".")[2] not in UNITS
    ]


def _leaves(model_type: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every option under its dotted key; sections are entered, not yielded."""
    for name, field in model_type.model_fields.items():
        section = _section(field)
        if section is None:
            yield prefix + name, field
        else:
            yield from _leaves(section, f"{prefix}{name}.")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    annotation: Any = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _from_file(file: Path | None, fields: Mapping[str, FieldInfo]) -> Iterator[tuple[str, _Given]]:
    if file is None:
        return
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(
            f"cannot read the configuration file {file}: {error.strerror}; check its path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} is not a TOML file: {error}") from error
    for key, value in _flatten(content, "", fields):
        yield key, _Given(value, f"file {file}", text=False)


def _flatten(
    content: Mapping[str, object], prefix: str, fields: Mapping[str, FieldInfo]
) -> Iterator[tuple[str, object]]:
    for name, value in content.items():
        key = prefix + name
        # A table is a section, unless the option itself is a mapping.
        if isinstance(value, dict) and key not in fields:
            yield from _flatten(value, f"{key}.", fields)
        else:
            yield key, value


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for name, text in sorted(environ.items()):
        rest = name.removeprefix(ENVIRONMENT_PREFIX)
        if rest == name or _belongs_elsewhere(rest):
            continue
        yield rest.lower().replace("__", "."), _Given(text, f"environment {name}", text=True)


def _belongs_elsewhere(rest: str) -> bool:
    # CLIENT_URL is the client's; CLIENT__URL would be an option of a section `client`.
    return any(rest.startswith(p) and not rest.startswith(p + "_") for p in OTHER_PREFIXES)


def _from_flags(flags: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for key, text in flags.items():
        yield key.replace("-", "_"), _Given(text, f"flag --{key}", text=True)


def _unknown(key: str, origin: str, fields: Mapping[str, FieldInfo]) -> str:
    near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
    if not near:
        # The right name in the wrong section.
        name = key.rpartition(".")[2]
        near = [other for other in fields if other.rpartition(".")[2] == name][:1]
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(fields))}"
    return f"{origin}: there is no setting {key!r}; {hint}"


def _build(
    model_type: type[ModelT], fields: Mapping[str, FieldInfo], given: Mapping[str, _Given]
) -> ModelT:
    nested: dict[str, Any] = {}
    for key, entry in given.items():
        *sections, name = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = _read(fields[key], entry.value) if entry.text else entry.value
    try:
        return model_type(**nested)
    except ValidationError as error:
        # Without the cause: pydantic's own message repeats the input, secret or not.
        raise InvalidSettings(_explain(error, fields, given)) from None


def _read(field: FieldInfo, text: object) -> object:
    """Turn the text of a variable or flag into what pydantic takes for the field's type."""
    assert isinstance(text, str)
    kinds = _alternatives(field.annotation)
    if NoneType in kinds and text.strip().lower() in ("none", ""):
        return None
    containers = {get_origin(kind) or kind for kind in kinds} & {list, tuple, set, frozenset, dict}
    if not containers:
        return text
    if text.lstrip().startswith(("[", "{")):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return text if containers == {dict} else [part.strip() for part in text.split(",") if part]


def _alternatives(annotation: Any) -> set[Any]:
    """Return the members of a union, or the annotation itself."""
    if get_origin(annotation) in (Union, UnionType):
        return set(get_args(annotation))
    return {annotation}


def _explain(
    error: ValidationError, fields: Mapping[str, FieldInfo], given: Mapping[str, _Given]
) -> str:
    lines = []
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        key = ".".join(str(part) for part in item["loc"])
        known = next((k for k in (key, *_parents(key)) if k in given), None)
        if known is None:
            lines.append(f"the setting {key!r} is wrong or missing: {item['msg']}")
            continue
        entry = given[known]
        shown = HIDDEN if _is_secret(fields[known]) else repr(entry.value)
        lines.append(f"{entry.origin}: {known} = {shown} does not fit: {item['msg']}")
    return "\n".join(lines)


def _parents(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def _options(
    model: BaseModel, fields: Mapping[str, FieldInfo], given: Mapping[str, _Given]
) -> Iterator[Option]:
    for key, field in fields.items():
        value: object = model
        for name in key.split("."):
            value = getattr(value, name)
        shown = HIDDEN if _is_secret(field) and value is not None else value
        origin = given[key].origin if key in given else DEFAULT
        yield Option(key, shown, origin, " ".join((field.description or "").split()))


def _is_secret(field: FieldInfo) -> bool:
    return bool(_alternatives(field.annotation) & {SecretStr, SecretBytes})


def _is_number(annotation: Any) -> bool:
    return bool(_alternatives(annotation) & {int, float})
