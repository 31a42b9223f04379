"""Settings: three layers, origins, refusals that help, secrets that stay secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field, SecretStr

from danube.core.errors import InvalidSettings
from danube.core.settings import HIDDEN, Settings, load, options_without_unit


class Journal(Settings):
    segment_bytes: int = Field(default=64 << 20, gt=0)
    """Size of a segment."""
    sync: bool = True


class Access(Settings):
    token: SecretStr | None = None
    addresses: list[str] = []
    labels: dict[str, str] = {}
    idle_ms: int | None = 1000
    cutoff_ratio: float = 0.5


class Process(Settings):
    name: str = "one"
    journal: Journal = Journal()
    access: Access = Access()


def write(directory: Path, text: str) -> Path:
    file = directory / "process.toml"
    file.write_text(text)
    return file


def test_without_any_layer_everything_is_default() -> None:
    loaded = load(Process, None, {}, {})
    assert loaded.model == Process()
    assert {option.origin for option in loaded.options} == {"default"}


def test_environment_overrides_file_and_flag_overrides_environment(tmp_path: Path) -> None:
    file = write(tmp_path, 'name = "file"\n[journal]\nsegment_bytes = 1\nsync = false\n')
    environ = {"DANUBE_JOURNAL__SEGMENT_BYTES": "2", "DANUBE_NAME": "environment", "HOME": "/"}
    loaded = load(Process, file, environ, {"journal.segment_bytes": "3"})
    assert loaded.model.journal == Journal(segment_bytes=3, sync=False)
    assert loaded.option("journal.segment_bytes").origin == "flag --journal.segment_bytes"
    assert loaded.option("name").origin == "environment DANUBE_NAME"
    assert loaded.option("journal.sync").origin == f"file {file}"
    assert loaded.option("access.idle_ms").origin == "default"


def test_options_come_in_the_order_of_the_fields_with_their_help() -> None:
    options = load(Process, None, {}, {}).options
    assert [option.key for option in options][:3] == [
        "name",
        "journal.segment_bytes",
        "journal.sync",
    ]
    assert options[1].help == "Size of a segment."
    assert options[1].value == 64 << 20


def test_an_unknown_key_of_a_file_names_file_and_nearest_key(tmp_path: Path) -> None:
    file = write(tmp_path, "[journal]\nsegmnt_bytes = 1\n")
    with pytest.raises(InvalidSettings) as raised:
        load(Process, file, {}, {})
    assert str(file) in str(raised.value)
    assert "'journal.segmnt_bytes'" in str(raised.value)
    assert "did you mean 'journal.segment_bytes'?" in str(raised.value)


def test_an_unknown_variable_or_flag_is_refused_by_its_own_name() -> None:
    with pytest.raises(InvalidSettings, match="environment DANUBE_JOURNAL__SYNK"):
        load(Process, None, {"DANUBE_JOURNAL__SYNK": "1"}, {})
    with pytest.raises(InvalidSettings, match=r"flag --journl\.sync"):
        load(Process, None, {}, {"journl.sync": "1"})


def test_every_unknown_key_is_reported_at_once() -> None:
    with pytest.raises(InvalidSettings) as raised:
        load(Process, None, {"DANUBE_A": "1"}, {"b": "2"})
    assert "DANUBE_A" in str(raised.value)
    assert "--b" in str(raised.value)


def test_a_key_in_the_wrong_section_is_pointed_to_the_right_one() -> None:
    with pytest.raises(InvalidSettings, match=r"did you mean 'access\.idle_ms'"):
        load(Process, None, {}, {"idle_ms": "5"})


def test_a_section_given_as_a_plain_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="there is no setting 'journal'"):
        load(Process, write(tmp_path, "journal = 5\n"), {}, {})


def test_variables_of_other_parts_are_left_alone() -> None:
    assert (
        load(Process, None, {"DANUBE_CLIENT_URL": "x", "DANUBE_JARS_DIR": "y"}, {}).model.name
        == "one"
    )


def test_a_value_that_does_not_fit_names_its_origin_and_the_bound() -> None:
    with pytest.raises(InvalidSettings) as raised:
        load(Process, None, {"DANUBE_JOURNAL__SEGMENT_BYTES": "-1"}, {})
    assert "environment DANUBE_JOURNAL__SEGMENT_BYTES" in str(raised.value)
    assert "'-1'" in str(raised.value)
    assert "greater than 0" in str(raised.value)


@pytest.mark.parametrize("text", ["a,b", "a, b", '["a", "b"]'])
def test_lists_are_read_from_text_in_both_spellings(text: str) -> None:
    assert load(Process, None, {}, {"access.addresses": text}).model.access.addresses == ["a", "b"]


def test_mappings_nothing_and_fractions_are_read_from_text() -> None:
    flags = {
        "access.labels": '{"rack": "7"}',
        "access.idle_ms": "none",
        "access.cutoff-ratio": "0.25",
    }
    access = load(Process, None, {}, flags).model.access
    assert access == Access(labels={"rack": "7"}, idle_ms=None, cutoff_ratio=0.25)


def test_a_mapping_in_the_file_is_one_option(tmp_path: Path) -> None:
    file = write(tmp_path, '[access.labels]\nrack = "7"\n')
    assert load(Process, file, {}, {}).option("access.labels").value == {"rack": "7"}


def test_a_secret_is_never_shown() -> None:
    loaded = load(Process, None, {"DANUBE_ACCESS__TOKEN": "hunter2"}, {})
    assert loaded.model.access.token is not None
    assert loaded.model.access.token.get_secret_value() == "hunter2"
    assert loaded.option("access.token").value == HIDDEN
    assert "hunter2" not in repr(loaded)


def test_a_wrong_secret_is_not_shown_in_the_error(tmp_path: Path) -> None:
    file = write(tmp_path, "[access]\ntoken = [42424242]\n")
    with pytest.raises(InvalidSettings) as raised:
        load(Process, file, {}, {})
    assert "42424242" not in str(raised.value)
    assert "access.token" in str(raised.value)


def test_a_file_that_is_missing_or_no_toml_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"nowhere\.toml"):
        load(Process, tmp_path / "nowhere.toml", {}, {})
    with pytest.raises(InvalidSettings, match="is not a TOML file"):
        load(Process, write(tmp_path, "name = \n"), {}, {})


def test_a_model_built_in_code_does_not_read_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEGMENT_BYTES", "7")
    monkeypatch.setenv("DANUBE_SEGMENT_BYTES", "7")
    assert Journal().segment_bytes == 64 << 20


def test_numbers_without_a_unit_are_found() -> None:
    class Wrong(Settings):
        window: int = 1
        window_ms: int = 1
        port: int = 0
        inner: Journal = Journal()
        limit: float | None = None
        either: int | float = 1

    assert options_without_unit(Wrong) == ["window", "limit", "either"]
