"""The house stands: rooms import only from floors below their own, and keep their promises."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

from tests.floors import FLOORS, heavy_imports, present_packages, room_of, violations

ROOT = Path(__file__).resolve().parents[2]


def graph_of(*imports: tuple[str, str]) -> grimp.ImportGraph:
    """Build a graph by hand; the second of each pair is imported by the first."""
    graph = grimp.ImportGraph()
    for importer, imported in imports:
        for module in (importer, imported):
            if module not in graph.modules:
                graph.add_module(module)
        graph.add_import(importer=importer, imported=imported)
    return graph


def test_our_own_imports_keep_the_floor_rule() -> None:
    packages = present_packages(ROOT)
    assert "danube" in packages
    graph = grimp.build_graph(
        *packages, include_external_packages=True, exclude_type_checking_imports=False
    )
    assert "pydantic_settings" in graph.find_modules_directly_imported_by("danube.core.settings")
    assert violations(graph) == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("danube.core.names", "danube.wire.status"),
        ("danube.journal.writer", "danube.log.topic"),
        ("danube.journal.shipping", "danube.lake.committer"),
        ("danube.lake.committer", "danube.metadata.catalog"),
        ("danube.broker.main", "danube.client.producer"),
        ("danube.client.producer", "danube.broker.main"),
        ("danube.broker.main", "danube"),
        ("danube.core.names", "danube"),
        ("spark_source.reader", "spark_sink.writer"),
        ("spark_source.reader", "pyspark_danube"),
        ("danube.cli.main", "danube.testing.faults"),
    ],
)
def test_an_import_upwards_or_across_a_floor_is_found(importer: str, imported: str) -> None:
    (problem,) = violations(graph_of((importer, imported)))
    assert importer in problem
    assert imported in problem
    assert "only from floors below" in problem


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("danube.client.producer", "danube.journal.writer"),
        ("spark_source.reader", "danube.lake.committer"),
        ("spark_sink.writer", "danube.log.decisions"),
    ],
)
def test_a_room_that_knows_more_than_it_promised_is_found(importer: str, imported: str) -> None:
    (problem,) = violations(graph_of((importer, imported)))
    assert "knows only" in problem


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("danube.core.frames.codec", "grpc"),
        ("danube.dispatch.shared", "asyncio"),
        ("danube.dispatch.shared", "time"),
        ("danube.dispatch.shared", "socket"),
    ],
)
def test_a_forbidden_package_is_found(importer: str, imported: str) -> None:
    assert any("does without" in problem for problem in violations(graph_of((importer, imported))))


def test_a_heavy_package_behind_the_lakes_reader_is_found_with_its_path() -> None:
    graph = graph_of(
        ("danube.lake.reader", "danube.lake.files"),
        ("danube.lake.files", "danube.objects.s3"),
        ("danube.objects.s3", "boto3"),
    )
    (problem,) = violations(graph)
    assert "boto3 <- danube.objects.s3 <- danube.lake.files <- danube.lake.reader" in problem


def test_a_room_that_is_not_built_yet_is_judged_by_its_name() -> None:
    graph = graph_of(("danube.journal.writer", "danube.core"))
    graph.add_module("danube")
    for line, number in (
        ("from danube.metadata.catalog import Catalog", 1),
        ("import danube.core.x", 2),
    ):
        graph.add_import(
            importer="danube.journal.writer",
            imported="danube",
            line_number=number,
            line_contents=line,
        )
    (problem,) = violations(graph)
    assert "danube.metadata.catalog (floor 3)" in problem


def test_what_a_package_itself_imports_counts_for_its_modules() -> None:
    graph = graph_of(
        ("danube.lake", "danube.lake.table"),
        ("danube.lake.table", "deltalake"),
        ("danube.lake.reader", "danube.core.batch"),
    )
    assert any("loads deltalake" in problem for problem in violations(graph))


def test_a_package_without_a_floor_is_found() -> None:
    graph = grimp.ImportGraph()
    graph.add_module("danube.attic.things")
    assert violations(graph) == ["danube.attic.things belongs to no room"]


def test_imports_downwards_and_within_a_room_are_fine() -> None:
    graph = graph_of(
        ("danube.log.topic", "danube.journal.writer"),
        ("danube.journal.writer", "danube.journal.files"),
        ("danube.log.topic", "danube.core.names"),
        ("danube", "danube.client.producer"),
        ("spark_source.reader", "danube.lake.reader"),
        ("spark_source.reader", "danube.blocking"),
        ("spark_source.reader", "danube"),
        ("danube.core.batch", "pyarrow"),
    )
    assert violations(graph) == []


def test_imports_for_type_checking_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "upper.py").write_text("")
    (package / "lower.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shed import upper\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    graph = grimp.build_graph("shed", cache_dir=None, exclude_type_checking_imports=False)
    assert graph.find_modules_directly_imported_by("shed.lower") == {"shed.upper"}


def test_every_room_has_one_floor() -> None:
    assert set(FLOORS.values()) == set(range(1, 9))
    assert room_of("danube.lake.reader") == "danube.lake"
    assert room_of("danube") == "danube.client"


def test_the_discovery_shim_imports_nothing_heavy() -> None:
    # Spark imports every pyspark_* module it finds; a slow or broken one harms all of them.
    for file in sorted((ROOT / "pyspark_danube").glob("**/*.py")):
        assert heavy_imports(file.read_text(), ["pyspark.sql.datasource"]) == [], file.name


def test_a_heavy_import_is_told_from_a_late_one() -> None:
    source = """
import sys
from typing import TYPE_CHECKING
from pyspark.sql.datasource import DataSource
if TYPE_CHECKING:
    import deltalake
try:
    import grpc
except ImportError:
    import boto3
class Source(DataSource):
    import pyarrow
    def reader(self):
        import spark_source
"""
    heavy = heavy_imports(source, ["pyspark.sql.datasource"])
    assert heavy == ["grpc", "boto3", "pyarrow"]
