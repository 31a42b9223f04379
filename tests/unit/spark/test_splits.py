from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from danube.core.limits import MIB
from spark_source.splits import ROW_GROUP_ROWS, Piece, group


def tail(rows: int, partition: int = 0, start: int = 0) -> Piece:
    return Piece("/ns/t", "00" * 16, partition, start, start + rows, broker_url="h:1")


def file(rows: int, size: int, start: int = 0) -> Piece:
    return Piece(
        "/ns/t", "00" * 16, 0, start, start + rows, uri="file:///f", file_bytes=size,
        first_offset=start,
    )  # fmt: skip


def test_a_small_micro_batch_is_one_task_whatever_its_partitions() -> None:
    groups = group([tail(100, partition) for partition in range(8)], cores=4)
    assert len(groups) == 1
    assert [piece.partition for piece in groups[0].pieces] == list(range(8))


def test_a_large_one_has_as_many_tasks_as_cores() -> None:
    pieces = [tail(25_000, partition) for partition in range(4)]
    groups = group(pieces, cores=2)
    assert [sum(p.end - p.start for p in each.pieces) for each in groups] == [50_000, 50_000]


def test_a_huge_one_has_tasks_of_a_bounded_size() -> None:
    assert len(group([file(10_000_000, 1024 * MIB)], cores=2)) == 8


def test_files_are_cut_between_row_groups() -> None:
    groups = group([file(3 * ROW_GROUP_ROWS, 90 * MIB, start=7)], cores=2)
    assert len(groups) == 2
    cut = groups[0].pieces[-1].end
    assert (cut - 7) % ROW_GROUP_ROWS == 0


def test_the_user_can_ask_for_more_tasks_but_not_for_empty_ones() -> None:
    assert len(group([tail(10)], cores=2, at_least=5)) == 5
    assert len(group([tail(3)], cores=2, at_least=5)) == 3
    assert group([], cores=2, at_least=5) == []


@given(
    st.lists(st.tuples(st.integers(1, 300_000), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 8),
    st.integers(1, 20),
)
def test_tasks_cover_every_offset_once_and_in_order(
    sizes: list[tuple[int, bool]], cores: int, at_least: int
) -> None:
    pieces = [
        Piece("/ns/t", "", number, 0, rows, uri="file:///f" if is_file else None,
              file_bytes=rows * 300)
        for number, (rows, is_file) in enumerate(sizes)
    ]  # fmt: skip
    groups = group(pieces, cores=cores, at_least=at_least)
    flat = [piece for each in groups for piece in each.pieces]
    assert all(piece.start < piece.end for piece in flat)
    joined: dict[int, int] = {}
    for piece in flat:
        assert joined.get(piece.partition, 0) == piece.start
        joined[piece.partition] = piece.end
    assert joined == {number: rows for number, (rows, _) in enumerate(sizes)}
    assert [piece.partition for piece in flat] == sorted(piece.partition for piece in flat)


def test_lost_ranges_go_with_the_part_they_lie_in() -> None:
    whole = Piece("/ns/t", "", 0, 0, 100, lost=((10, 20), (40, 60)))
    assert whole.between(0, 50).lost == ((10, 20), (40, 50))
    assert whole.between(50, 100).lost == ((50, 60),)
