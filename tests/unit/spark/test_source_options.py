from __future__ import annotations

import pytest

from danube.core.errors import InvalidName, InvalidSettings
from spark_source.options import SourceOptions
from spark_source.positions import EARLIEST, LATEST, Positions

BASE = {"serviceurl": "127.0.0.1:6650", "subscribe": "/default/events"}


def parse(**more: str) -> SourceOptions:
    return SourceOptions.parse(BASE | more)


def test_options_are_read_whatever_their_case() -> None:
    options = SourceOptions.parse(
        {"SERVICEURL": "h:1", "Subscribe": "/a/b, /a/c,/a/b", "maxoffsetspertrigger": "10"}
    )
    assert options.service_url == "h:1"
    assert options.topics == ("/a/b", "/a/c")
    assert options.max_offsets_per_trigger == 10
    assert options.fail_on_data_loss


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("startingoffset", "startingOffsets"),
        ("maxoffsetpertrigger", "maxOffsetsPerTrigger"),
        ("failondataloos", "failOnDataLoss"),
        ("subscriptioname", "subscriptionName"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_name(wrong: str, right: str) -> None:
    with pytest.raises(InvalidSettings, match=f"did you mean '{right}'"):
        parse(**{wrong: "x"})


def test_options_of_spark_and_of_strangers_are_left_alone() -> None:
    assert parse(checkpointlocation="/c", queryname="q", path="p", colour="blue") == parse()


def test_an_option_of_sparks_kafka_source_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidSettings, match="name the topics in 'subscribe'"):
        parse(subscribepattern="/a/.*")


@pytest.mark.parametrize("missing", ["serviceurl", "subscribe"])
def test_a_missing_option_is_named(missing: str) -> None:
    with pytest.raises(InvalidSettings, match="is missing; set it"):
        SourceOptions.parse({name: value for name, value in BASE.items() if name != missing})


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_an_impossible_number_is_refused(value: str) -> None:
    with pytest.raises(InvalidSettings, match="whole number of at least 1"):
        parse(maxoffsetspertrigger=value)


def test_a_flag_takes_true_and_false_only() -> None:
    assert not parse(failondataloss="FALSE").fail_on_data_loss
    with pytest.raises(InvalidSettings, match="give true or false"):
        parse(failondataloss="maybe")


@pytest.mark.parametrize("name", ["events", "default/events", "/default/", "/default/ev ents"])
def test_a_malformed_topic_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        SourceOptions.parse(BASE | {"subscribe": name})


def test_positions_are_words_or_json() -> None:
    assert parse(startingoffsets="Earliest").starting == Positions(EARLIEST)
    exact = parse(startingoffsets='{"/default/events": {"0": 17, "1": -1}}').starting
    assert exact is not None
    assert exact.of("startingOffsets", "/default/events", 0) == 17
    assert exact.of("startingOffsets", "/default/events", 1) == LATEST
    with pytest.raises(InvalidSettings, match="no offset for partition 2"):
        exact.of("startingOffsets", "/default/events", 2)


@pytest.mark.parametrize(
    "text",
    [
        "oldest",
        "[]",
        "{}",
        '{"/default/events": 3}',
        '{"/default/events": {"x": 3}}',
        '{"/default/events": {"0": -3}}',
        '{"/default/events": {"0": "3"}}',
        '{"/default/events": {"0": true}}',
        '{"/default/events": {}}',
    ],
)
def test_a_position_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSettings, match="give "):
        parse(startingoffsets=text)


def test_positions_of_a_topic_that_is_not_read_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="not in 'subscribe'"):
        parse(startingoffsets='{"/default/other": {"0": 1}}')


def test_a_stream_has_no_end_and_a_batch_no_empty_range() -> None:
    with pytest.raises(InvalidSettings, match="cannot be used in a streaming read"):
        parse(endingoffsets="latest").for_stream()
    with pytest.raises(InvalidSettings, match="cannot start at 'latest'"):
        parse(startingoffsets="latest").for_batch()
    with pytest.raises(InvalidSettings, match="cannot end at 'earliest'"):
        parse(endingoffsets="earliest").for_batch()
