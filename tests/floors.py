"""The floor rule: which room may import which, as functions over an import graph.

The table is the one of the design: a room imports only from floors below its own, and rooms of one
floor do not know each other. Some rooms promise more than that; their promises follow the table.
An import under ``TYPE_CHECKING`` or inside a function counts like any other: knowing a name is
knowing a room.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from grimp import ImportGraph

PACKAGES: Final = ("danube", "spark_source", "spark_sink", "pyspark_danube")

FLOORS: Final = {
    "danube.core": 1,
    "danube.wire": 2,
    "danube.objects": 2,
    "danube.metadata": 3,
    "danube.schema": 3,
    "danube.journal": 3,
    "danube.lake": 3,
    "danube.dispatch": 3,
    "danube.log": 4,
    "danube.security": 4,
    "danube.upkeep": 5,
    "danube.cluster": 5,
    "danube.broker": 6,
    "danube.client": 6,
    "danube.spark": 7,
    "spark_source": 7,
    "spark_sink": 7,
    "pyspark_danube": 8,
    "danube.cli": 8,
    "danube.console": 8,
    "danube.testing": 8,
    "danube.demo": 8,
}
# The package itself is the client's front door.
FACADES: Final = {
    "danube": "danube.client",
    "danube.blocking": "danube.client",
    "danube.aio": "danube.client",
}
# The design names core, client and the lake's reader; wire, which the client stands on, was added
# (docs/decisions.md, 2).
_FOR_SPARK: Final = ("danube.core", "danube.wire", "danube.client", "danube.lake.reader")
# Rooms that know less than their floor allows.
KNOWS: Final[dict[str, tuple[str, ...]]] = {
    "danube.client": ("danube.core", "danube.wire", "danube.schema"),
    "danube.spark": _FOR_SPARK,
    "spark_source": _FOR_SPARK,
    "spark_sink": _FOR_SPARK,
}
# Packages of others that a room or module does not import itself.
FORBIDDEN: Final[dict[str, frozenset[str]]] = {
    "danube.core": frozenset({"grpc"}),
    "danube.dispatch": frozenset(
        {"asyncio", "grpc", "random", "secrets", "select", "socket", "subprocess"}
        | {"threading", "time"}
    ),
}
# Packages of others that are not loaded either when the module is, by whatever it imports.
NEVER_LOADED: Final[dict[str, frozenset[str]]] = {
    "danube.core.frames": frozenset({"grpc"}),
    "danube.lake.reader": frozenset({"deltalake", "boto3", "botocore"}),
}
_WRITTEN: Final = re.compile(r"(?:from|import) +(danube\.[\w.]+)")


def violations(graph: ImportGraph) -> list[str]:
    """Return one sentence per broken rule, sorted; empty if the house stands."""
    modules = sorted(module for module in graph.modules if _is_ours(module))
    found = [f"{module} belongs to no room" for module in modules if room_of(module) is None]
    for module in modules:
        for imported in _imports_of(graph, module):
            found.extend(_broken_by(module, imported))
    for start, packages in NEVER_LOADED.items():
        found.extend(_loads(graph, start, packages))
    return sorted(found)


def room_of(module: str) -> str | None:
    """Return the room that a module of ours belongs to, or nothing if it has none."""
    if module in FACADES:
        return FACADES[module]
    parts = module.split(".")
    for length in (2, 1):
        name = ".".join(parts[:length])
        if name in FLOORS or name in FACADES.keys() - {"danube"}:
            return FACADES.get(name, name)
    return None


def _imports_of(graph: ImportGraph, module: str) -> list[str]:
    """Return what a module imports, by the names that it wrote.

    The graph puts an import of a room that is not built yet down to ``danube`` itself.
    """
    names: set[str] = set()
    for imported in graph.find_modules_directly_imported_by(module):
        details = graph.get_import_details(importer=module, imported=imported)
        written = [_WRITTEN.match(detail["line_contents"]) for detail in details]
        if imported == "danube" and written and all(written):
            names.update(match[1] for match in written if match)
        else:
            names.add(imported)
    return sorted(names)


def _broken_by(module: str, imported: str) -> Iterator[str]:
    room = room_of(module)
    if room is None:
        return
    if not _is_ours(imported):
        for place, packages in FORBIDDEN.items():
            if _within(module, place) and imported.split(".")[0] in packages:
                yield f"{module} imports {imported}, which {place} does without"
        return
    other = room_of(imported)
    if other is None or other == room:
        return
    if FLOORS[other] >= FLOORS[room]:
        yield (
            f"{module} (floor {FLOORS[room]}) imports {imported} (floor {FLOORS[other]}): "
            "a room imports only from floors below its own"
        )
    elif room in KNOWS and not _knows(room, imported):
        yield f"{module} imports {imported}; {room} knows only {', '.join(KNOWS[room])}"


def _knows(room: str, imported: str) -> bool:
    # Who knows a room may come in by its front door.
    return FACADES.get(imported) in KNOWS[room] or any(
        _within(imported, known) for known in KNOWS[room]
    )


def _loads(graph: ImportGraph, start: str, packages: frozenset[str]) -> Iterator[str]:
    """Follow what importing a module runs: its imports and the packages that hold them."""
    came_from: dict[str, str] = {}
    waiting = [module for module in (start, *_holders(start)) if module in graph.modules]
    seen = set(waiting)
    while waiting:
        module = waiting.pop()
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if imported.split(".")[0] in packages:
                path = " <- ".join([imported, *_back(module, came_from)])
                yield f"importing {start} loads {imported.split('.')[0]}: {path}"
            for reached in (imported, *_holders(imported)):
                if _is_ours(reached) and reached in graph.modules and reached not in seen:
                    seen.add(reached)
                    came_from[reached] = module
                    waiting.append(reached)


def _holders(module: str) -> list[str]:
    # Not the front door: it loads the client, and is loaded by whoever imports anything of ours.
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(2, len(parts))]


def _back(module: str, came_from: dict[str, str]) -> Iterator[str]:
    yield module
    while module in came_from:
        module = came_from[module]
        yield module


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in PACKAGES


def _within(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def heavy_imports(source: str, allowed: Iterable[str]) -> list[str]:
    """Return what a module imports as it is loaded, besides the standard library and ``allowed``.

    Imports inside functions and under ``TYPE_CHECKING`` run later or never and do not count.
    """
    permitted = tuple(allowed)
    return [
        name
        for name in _loaded_by(ast.parse(source).body)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not any(_within(name, place) for place in permitted)
    ]


def _loaded_by(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield "." * node.level + (node.module or "")
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                yield from _loaded_by(node.orelse)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case _:
                for name in ("body", "orelse", "finalbody"):
                    yield from _loaded_by(getattr(node, name, []))
                for handler in getattr(node, "handlers", []):
                    yield from _loaded_by(handler.body)


def present_packages(root: Path) -> list[str]:
    """Return those of our packages that exist in a checkout."""
    return [name for name in PACKAGES if (root / name / "__init__.py").is_file()]
