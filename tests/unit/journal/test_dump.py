from __future__ import annotations

import json
from pathlib import Path

import pytest

from danube.core.errors import InvalidRequest
from danube.journal.dump import DumpLine, dump, journal_directory
from danube.journal.envelope import EntryKind
from danube.journal.layout import BLOCK_BYTES
from tests.unit.journal.journals import DIRECTORY, TOPIC, Bench, messages, staged, state


def lines_of(bench: Bench) -> list[DumpLine]:
    return list(dump(DIRECTORY, bench.disk.files()))


def written() -> Bench:
    bench = Bench()
    bench.open()
    bench.write(messages("a", 17, partition=2), staged("b", "c0ffee"), state("cursor"))
    bench.checkpoint(state("sum", EntryKind.CHECKPOINT_STATE))
    return bench


def test_every_segment_flush_and_entry_has_a_line() -> None:
    lines = lines_of(written())
    assert [line.what for line in lines[:5]] == ["segment", "flush", "entry", "entry", "entry"]
    text = "\n".join(map(str, lines))
    assert "segment 1 (live): broker broker, incarnation" in text
    assert "flush 1: 3 entries" in text
    assert "MESSAGES offsets [17, 18), epoch 1, producer 1 epoch 1 sequence 0" in text
    assert f"(topic {TOPIC.hex()}, partition 2)" in text
    assert 'STAGED 1 messages, producer 1 epoch 1 sequence 0, {"set":"c0ffee"}' in text
    assert 'STATE {"t":"cursor"}' in text
    assert "CHECKPOINT_END" in text
    assert "[empty]" in text
    assert "damaged" not in text


def test_programs_get_the_same_as_json() -> None:
    for line in lines_of(written()):
        assert json.loads(json.dumps(line.fields)) == line.fields
    entry = next(line for line in lines_of(written()) if line.what == "entry")
    assert entry.fields["base_offset"] == 17
    assert entry.fields["count"] == 1


def test_a_long_state_is_shortened_for_people_only() -> None:
    bench = Bench()
    bench.open()
    bench.write(state("x" * 500))
    entry = next(line for line in lines_of(bench) if line.what == "entry")
    assert entry.text.count("x") == 200 - len('{"t":"')
    assert entry.fields["body"].count("x") == 500


@pytest.mark.parametrize("byte", [20, 48 + 30, 48 + 88 + 104 + 20])
def test_damage_is_shown_and_what_lies_behind_it_too(byte: int) -> None:
    bench = Bench()
    bench.open()
    for at in range(4):
        bench.write(messages(f"m{at}", at), state(f"s{at}"))
    bench.flip(1, 2 * BLOCK_BYTES + byte)
    lines = lines_of(bench)
    assert any(line.what == "damaged" for line in lines)
    assert any('{"t":"s3"}' in line.text for line in lines)


def test_old_and_recovered_segments_are_told_apart() -> None:
    bench = written()
    bench.restart()
    shown = [line.text for line in lines_of(bench) if line.what == "segment"]
    assert "(live)" in shown[0]
    assert "(live, recovery)" in shown[1]
    assert any("RECOVERY_CUT" in line.text for line in lines_of(bench))


def test_a_newer_or_foreign_file_is_a_line_and_not_an_error() -> None:
    bench = written()
    bench.disk.overwrite(bench.path(1), 8, b"\x02")
    assert "upgrade" in lines_of(bench)[0].text
    other = Bench()
    other.disk.overwrite_new(other.path(3), b"not a segment")
    assert "no valid header block" in lines_of(other)[0].text


def test_what_harms_nobody_is_not_called_damage() -> None:
    bench = Bench()
    bench.open()
    bench.write(messages("a", 0))
    (*_, last) = bench.write(*(messages("y" * 3_000, 1 + at) for at in range(3)))
    # Nothing behind it says that this flush was synced.
    bench.disk.kill()
    bench.disk.overwrite(bench.path(1), last.offset + 512, bytes(512))
    torn = [line for line in lines_of(bench) if line.what == "note"]
    assert any("torn tail" in line.text for line in torn)
    # After recovery the torn flush is superseded, and so is what it left of a segment.
    bench.open()
    bench.drain()
    lines = lines_of(bench)
    assert "damaged" not in {line.what for line in lines}
    assert any("goes on elsewhere" in line.text for line in lines)


def test_the_journal_of_a_data_directory_is_found(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    with pytest.raises(InvalidRequest, match="no journal"):
        journal_directory(tmp_path)
    (journal / "00000000000000000001.segment").write_bytes(b"")
    assert journal_directory(tmp_path) == journal_directory(journal) == journal
