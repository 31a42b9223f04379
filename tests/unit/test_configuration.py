"""The example configuration is what the typed settings say."""

from __future__ import annotations

from danube.broker.settings import BrokerSettings
from danube.core.settings import load
from scripts.write_configuration import TARGET, configuration


def test_the_example_configuration_is_up_to_date() -> None:
    assert TARGET.read_text(encoding="utf-8") == configuration(), "run: make conf"


def test_the_example_configuration_can_be_used_as_it_is() -> None:
    assert load(BrokerSettings, TARGET, {}, {}).model == BrokerSettings()
