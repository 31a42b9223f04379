"""Settings as text: what is printed can be loaded, and says where it came from."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

from pydantic import SecretStr

from danube.core.settings import Settings, load
from danube.core.settings_file import effective, example


class Level(StrEnum):
    DISK = "disk"


class Lake(Settings):
    roll_age_ms: int = 3000
    """How old the oldest message gets before it is rolled."""
    keep_ratio: float = 0.25
    level: Level = Level.DISK
    labels: dict[str, str] = {}
    token: SecretStr | None = None


class Process(Settings):
    lake: Lake = Lake()
    """Tables."""
    data_dir: Path = Path('/var/lib/"danube"')
    """Where everything lies."""
    addresses: tuple[str, ...] = ("a:1", "b:2")
    quiet: bool = False
    limit_bytes: int | None = None


def test_the_example_names_every_option_and_changes_nothing(tmp_path: Path) -> None:
    text = example(Process, "A process.")
    file = tmp_path / "example.toml"
    file.write_text(text)
    loaded = load(Process, file, {}, {})
    assert {option.origin for option in loaded.options} == {"default"}
    assert text.startswith("# A process.\n\n# Where everything lies.\n# data_dir = ")
    assert "# Tables.\n[lake]\n\n# How old the oldest message gets" in text


def test_the_example_loads_to_the_defaults_once_its_lines_are_enabled(tmp_path: Path) -> None:
    enabled = re.sub(r"^# (\w+ = [^(])", r"\1", example(Process), flags=re.MULTILINE)
    file = tmp_path / "enabled.toml"
    file.write_text(enabled)
    loaded = load(Process, file, {}, {})
    assert loaded.model == Process()
    assert loaded.option("lake.roll_age_ms").origin.startswith("file")


def test_what_is_in_effect_shows_origins_loads_again_and_hides_secrets(tmp_path: Path) -> None:
    flags = {"lake.token": "hunter2", "lake.labels": '{"a": "b"}', "quiet": "true"}
    loaded = load(Process, None, {"DANUBE_LAKE__ROLL_AGE_MS": "7"}, flags)
    text = effective(loaded)
    assert "roll_age_ms = 7  # environment DANUBE_LAKE__ROLL_AGE_MS" in text
    assert "quiet = true  # flag --quiet" in text
    assert "keep_ratio = 0.25  # default" in text
    assert "# limit_bytes is not set  # default" in text
    assert "hunter2" not in text
    file = tmp_path / "effective.toml"
    file.write_text(text)
    again = load(Process, file, {}, {}).model
    assert again.lake.labels == {"a": "b"}
    assert again.model_copy(update={"lake": Lake()}) == Process(quiet=True)
