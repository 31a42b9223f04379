"""What every test has: long runs on request, seeds that replay, Spark tests apart."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# A failing example is printed with the blob that replays it; shared machines are slow now and
# then, so no example has a deadline (the whole test has a time-out).
settings.register_profile(
    "test",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", parent=settings.get_profile("test"), max_examples=2000)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch of ``make test-all``."""
    parser.addoption("--long", action="store_true", help="run the long tests too, at full size")


def pytest_configure(config: pytest.Config) -> None:
    """Choose how much hypothesis tries; ``--hypothesis-seed`` and printed blobs replay a run."""
    chosen = os.environ.get("HYPOTHESIS_PROFILE")
    settings.load_profile(chosen or ("long" if config.getoption("--long") else "test"))


@pytest.fixture(scope="session")
def long_run(pytestconfig: pytest.Config) -> bool:
    """Whether tests that repeat something (seeds, kills) should do so at full length."""
    return bool(pytestconfig.getoption("--long"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out unless asked for; mark those that start a JVM.

    First of all plugins, because ``-m spark`` has to see the marks.
    """
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        if any(name == "spark" or name.startswith("spark_session") for name in fixtures):
            item.add_marker(pytest.mark.spark)
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
