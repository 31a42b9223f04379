"""A broker's data directory: what lies where, whose it is, and which format it has."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from danube.core.clock import IdSource
from danube.core.errors import InvalidSettings, UnsupportedFormat

FORMAT = 1
"""Version of the directory's layout."""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Paths below one broker's data directory, and the broker's id."""

    root: Path
    broker_id: str

    @property
    def journal(self) -> Path:
        """Segments of the journal."""
        return self.root / "journal"

    @property
    def metadata(self) -> Path:
        """The embedded metadata store."""
        return self.root / "metadata.sqlite"

    @property
    def lake(self) -> Path:
        """Root of the tables."""
        return self.root / "lake"


def open_directory(root: Path, ids: IdSource) -> DataDirectory:
    """Open a data directory, or make a new one.

    Raises:
        InvalidSettings: the path is not a directory, not writable, or holds something else.
        UnsupportedFormat: a newer version wrote it.
    """
    root = root.absolute()
    marker = root / "danube.json"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if marker.exists():
            return _existing(root, marker)
        if any(root.iterdir()):
            raise InvalidSettings(
                f"{root} is not empty and not a broker's data directory; name an empty or a new "
                "directory"
            )
        return _create(root, marker, ids.random_bytes(6).hex())
    except OSError as error:
        raise InvalidSettings(
            f"the data directory {root} cannot be used ({error.strerror}); name a directory that "
            "this user can write to"
        ) from error


def _existing(root: Path, marker: Path) -> DataDirectory:
    try:
        found = json.loads(marker.read_text())
        version, broker_id = int(found["format"]), str(found["broker_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidSettings(
            f"{marker} is damaged ({error}); restore it: "
            f'{{"format": {FORMAT}, "broker_id": "…"}}; the id is in the journal\'s dump'
        ) from error
    if version > FORMAT:
        raise UnsupportedFormat(
            f"{root} has format {version}, this version reads up to {FORMAT}; upgrade danube-spark"
        )
    return DataDirectory(root, broker_id)


def _create(root: Path, marker: Path, broker_id: str) -> DataDirectory:
    temporary = marker.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump({"format": FORMAT, "broker_id": broker_id}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(marker)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return DataDirectory(root, broker_id)
