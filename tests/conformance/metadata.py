"""What every metadata store must do: inherit the class and give it the fixtures it names.

Backends of a cluster will inherit it too, so nothing here knows about files; a backend that keeps
time of its own makes a ``ManualClock`` that moves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from danube.core.errors import InvalidRequest, NotFound, Unavailable
from danube.core.stores import (
    Compare,
    CompareTarget,
    Delete,
    MetadataStore,
    Put,
    WatchCompacted,
    WatchEvent,
)
from tests.clocks import ManualClock

KEPT_EVENTS = 50
"""The stores under test keep at least so many changes, and not many more."""


async def events(
    store: MetadataStore, prefix: str, after_revision: int, count: int
) -> list[WatchEvent]:
    """The first ``count`` events of a watch."""
    found: list[WatchEvent] = []
    async with aclosing(as_generator(store.watch(prefix, after_revision=after_revision))) as watch:
        async for event in watch:
            found.append(event)
            if len(found) == count:
                break
    return found


def as_generator(watch: AsyncIterator[WatchEvent]) -> Any:
    """A watch is an asynchronous generator, which has to be closed."""
    return watch


def told(found: list[WatchEvent]) -> list[tuple[str, bytes | None]]:
    """Keys and values of events."""
    return [(event.key, event.current.value if event.current else None) for event in found]


class MetadataConformance:
    """Inherit, and define the fixtures ``store`` (keeping KEPT_EVENTS changes) and ``clock``."""

    # -- keys and revisions ----------------------------------------------------------------

    async def test_an_absent_key_is_none(self, store: MetadataStore) -> None:
        assert await store.get("/a") is None
        assert await store.get_many(["/a", "/b"]) == [None, None]
        assert await store.range("/") == []
        assert await store.delete("/a") is False

    async def test_what_was_put_is_read_with_its_revisions(self, store: MetadataStore) -> None:
        first = await store.put("/a", b"one")
        second = await store.put("/a", b"two")
        found = await store.get("/a")
        assert found is not None
        assert (found.key, found.value, found.lease) == ("/a", b"two", 0)
        assert (found.create_revision, found.mod_revision) == (first, second)
        assert first < second == await store.revision()

    async def test_revisions_are_one_counter_for_all_keys(self, store: MetadataStore) -> None:
        revisions = [await store.put(f"/{name}", b"") for name in "cab"]
        assert revisions == sorted(set(revisions))

    async def test_a_key_created_again_has_a_new_create_revision(
        self, store: MetadataStore
    ) -> None:
        first = await store.put("/a", b"")
        assert await store.delete("/a") is True
        second = await store.put("/a", b"")
        found = await store.get("/a")
        assert found is not None
        assert found.create_revision == second > first

    async def test_what_changes_nothing_makes_no_revision(self, store: MetadataStore) -> None:
        before = await store.put("/a", b"")
        await store.delete("/b")
        refused = await store.transact([Compare.absent("/a")], [Put("/a", b"other")])
        empty = await store.transact([], [Delete("/c")])
        assert (refused.succeeded, refused.revision) == (False, before)
        assert (empty.succeeded, empty.revision) == (True, before)
        assert await store.revision() == before

    async def test_values_are_bytes_of_any_kind(self, store: MetadataStore) -> None:
        value = bytes(range(256))
        await store.put("/a", value)
        await store.put("/empty", b"")
        found, empty = await store.get_many(["/a", "/empty"])
        assert found is not None
        assert found.value == value
        assert empty is not None
        assert empty.value == b""

    # -- ranges ----------------------------------------------------------------------------

    async def test_a_range_is_sorted_and_ends_with_its_prefix(self, store: MetadataStore) -> None:
        for key in ("/b/2", "/a", "/b/10", "/b", "/c", "/b/1"):
            await store.put(key, key.encode())
        assert [item.key for item in await store.range("/b/")] == ["/b/1", "/b/10", "/b/2"]

    async def test_a_range_goes_on_page_by_page(self, store: MetadataStore) -> None:
        keys = [f"/k/{number:03}" for number in range(25)]
        for key in reversed(keys):
            await store.put(key, b"")
        found: list[str] = []
        while page := await store.range("/k/", start_after=found[-1] if found else "", limit=10):
            assert len(page) <= 10
            found += [item.key for item in page]
        assert found == keys

    async def test_keys_are_sorted_by_code_point(self, store: MetadataStore) -> None:
        keys = ["/k/Z", "/k/a", "/k/ä", "/k/\ufffd", "/k/\U0001f600"]
        for key in reversed(keys):
            await store.put(key, b"")
        assert [item.key for item in await store.range("/k/")] == keys

    async def test_a_prefix_is_not_a_pattern(self, store: MetadataStore) -> None:
        for key in ("/a%", "/a_", "/ab", "/A%", "/a*"):
            await store.put(key, b"")
        assert [item.key for item in await store.range("/a%")] == ["/a%"]
        assert [item.key for item in await store.range("/a_")] == ["/a_"]

    # -- transactions ----------------------------------------------------------------------

    async def test_a_transaction_applies_all_or_nothing(self, store: MetadataStore) -> None:
        revision = await store.put("/a", b"1")
        good = await store.transact(
            [Compare.unchanged("/a", revision), Compare.absent("/b")],
            [Put("/a", b"2"), Put("/b", b"2")],
        )
        bad = await store.transact(
            [Compare.unchanged("/a", good.revision), Compare.absent("/b")],
            [Put("/a", b"3"), Put("/c", b"3")],
        )
        assert (good.succeeded, bad.succeeded) == (True, False)
        assert [item.value for item in await store.range("/")] == [b"2", b"2"]

    async def test_all_of_a_transaction_has_one_revision(self, store: MetadataStore) -> None:
        done = await store.transact([], [Put("/a", b""), Put("/b", b""), Delete("/c")])
        assert {item.mod_revision for item in await store.range("/")} == {done.revision}

    @pytest.mark.parametrize(
        ("target", "right", "wrong"),
        [
            (CompareTarget.VALUE, b"1", b"2"),
            (CompareTarget.CREATE_REVISION, 1, 2),
            (CompareTarget.MOD_REVISION, 2, 1),
        ],
    )
    async def test_every_target_is_compared(
        self, store: MetadataStore, target: CompareTarget, right: int | bytes, wrong: int | bytes
    ) -> None:
        first = await store.put("/a", b"0")
        await store.put("/a", b"1")
        shift = first - 1
        for expected, holds in ((right, True), (wrong, False)):
            value = expected + shift if isinstance(expected, int) else expected
            result = await store.transact([Compare("/a", target, value)], [])
            assert result.succeeded is holds

    async def test_an_absent_key_has_revision_zero_and_no_value(self, store: MetadataStore) -> None:
        for target, expected, holds in (
            (CompareTarget.MOD_REVISION, 0, True),
            (CompareTarget.CREATE_REVISION, 0, True),
            (CompareTarget.VALUE, b"", False),
        ):
            result = await store.transact([Compare("/no", target, expected)], [])
            assert result.succeeded is holds

    async def test_comparisons_see_the_state_before_the_operations(
        self, store: MetadataStore
    ) -> None:
        result = await store.transact([Compare.absent("/a")], [Put("/a", b"")])
        assert result.succeeded

    async def test_a_key_written_twice_in_a_transaction_is_refused(
        self, store: MetadataStore
    ) -> None:
        with pytest.raises(InvalidRequest, match="twice"):
            await store.transact([], [Put("/a", b"1"), Delete("/a")])

    async def test_counters_by_compare_and_set_lose_no_step(self, store: MetadataStore) -> None:
        async def count() -> None:
            for _ in range(10):
                while True:
                    found = await store.get("/n")
                    revision = found.mod_revision if found else 0
                    await asyncio.sleep(0)
                    value = str(int(found.value if found else b"0") + 1).encode()
                    done = await store.transact(
                        [Compare.unchanged("/n", revision)], [Put("/n", value)]
                    )
                    if done.succeeded:
                        break

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(count())
        found = await store.get("/n")
        assert found is not None
        assert found.value == b"80"

    async def test_one_of_many_wins_the_creation_of_a_key(self, store: MetadataStore) -> None:
        results = await asyncio.gather(
            *(store.transact([Compare.absent("/k")], [Put("/k", b"%d" % n)]) for n in range(20))
        )
        (winner,) = [n for n, result in enumerate(results) if result.succeeded]
        found = await store.get("/k")
        assert found is not None
        assert found.value == b"%d" % winner

    @pytest.mark.parametrize("key", ["", "x" * 5000, "\ud800"])
    async def test_a_key_that_no_store_takes_is_refused(
        self, store: MetadataStore, key: str
    ) -> None:
        with pytest.raises(InvalidRequest, match="metadata key"):
            await store.put(key, b"")

    async def test_a_value_that_no_store_takes_is_refused(self, store: MetadataStore) -> None:
        with pytest.raises(InvalidRequest, match="at most"):
            await store.put("/a", bytes(1024 * 1024 + 1))

    # -- watches ---------------------------------------------------------------------------

    async def test_a_watch_tells_every_change_in_order(self, store: MetadataStore) -> None:
        start = await store.revision()
        watching = asyncio.create_task(events(store, "/w/", start, 4))
        await store.put("/w/a", b"1")
        await store.put("/other", b"")
        await store.transact([], [Put("/w/a", b"2"), Put("/w/b", b"2")])
        await store.delete("/w/a")
        found = await watching
        assert told(found) == [("/w/a", b"1"), ("/w/a", b"2"), ("/w/b", b"2"), ("/w/a", None)]
        assert [event.revision for event in found] == sorted(event.revision for event in found)
        assert found[1].revision == found[2].revision

    async def test_a_watch_resumes_where_it_was(self, store: MetadataStore) -> None:
        for number in range(6):
            await store.put("/w", b"%d" % number)
        first = await events(store, "/w", 0, 3)
        rest = await events(store, "/w", first[-1].revision, 3)
        assert told(first + rest) == [("/w", b"%d" % number) for number in range(6)]

    async def test_a_watch_waits_for_what_comes(self, store: MetadataStore) -> None:
        await store.put("/w", b"before")
        watching = asyncio.create_task(events(store, "/w", await store.revision(), 1))
        await store.put("/v", b"of somebody else")
        await store.put("/w", b"after")
        assert told(await watching) == [("/w", b"after")]

    async def test_a_watch_tells_the_revisions_of_what_it_shows(self, store: MetadataStore) -> None:
        await store.put("/w", b"1")
        await store.put("/w", b"2")
        found = await events(store, "/w", 0, 2)
        assert found[1].current == await store.get("/w")

    async def test_history_that_is_gone_is_said_to_be_gone(self, store: MetadataStore) -> None:
        start = await store.put("/w", b"")
        for number in range(2 * KEPT_EVENTS):
            await store.put("/w", b"%d" % number)
        with pytest.raises(WatchCompacted, match="list the keys again"):
            await events(store, "/w", start, 1)
        recent = await store.revision() - KEPT_EVENTS // 2
        assert len(await events(store, "/w", recent, KEPT_EVENTS // 2)) == KEPT_EVENTS // 2

    # -- leases ----------------------------------------------------------------------------

    async def test_a_lease_that_is_not_kept_alive_takes_its_keys(
        self, store: MetadataStore, clock: ManualClock
    ) -> None:
        lease = await store.grant_lease(10)
        await store.put("/a", b"", lease=lease)
        await store.put("/b", b"")
        clock.advance(9.9)
        assert await store.get("/a") is not None
        clock.advance(0.2)
        assert await store.get("/a") is None
        assert await store.get("/b") is not None
        assert await store.keep_alive(lease) is False

    async def test_a_lease_kept_alive_lives_on(
        self, store: MetadataStore, clock: ManualClock
    ) -> None:
        lease = await store.grant_lease(10)
        await store.put("/a", b"", lease=lease)
        for _ in range(5):
            clock.advance(8)
            assert await store.keep_alive(lease) is True
        found = await store.get("/a")
        assert found is not None
        assert found.lease == lease

    async def test_a_revoked_lease_takes_its_keys_at_once(self, store: MetadataStore) -> None:
        lease = await store.grant_lease(10)
        await store.transact([], [Put("/a", b"", lease), Put("/b", b"", lease)])
        await store.revoke_lease(lease)
        assert await store.range("/") == []
        await store.revoke_lease(lease)

    async def test_a_key_put_without_its_lease_outlives_it(
        self, store: MetadataStore, clock: ManualClock
    ) -> None:
        lease = await store.grant_lease(10)
        await store.put("/a", b"", lease=lease)
        await store.put("/a", b"for ever")
        clock.advance(11)
        assert await store.get("/a") is not None

    async def test_a_key_deleted_and_put_again_is_not_the_leases(
        self, store: MetadataStore
    ) -> None:
        lease = await store.grant_lease(10)
        await store.put("/a", b"", lease=lease)
        await store.delete("/a")
        await store.put("/a", b"mine")
        await store.revoke_lease(lease)
        assert await store.get("/a") is not None

    async def test_a_put_under_an_ended_lease_is_refused_and_changes_nothing(
        self, store: MetadataStore, clock: ManualClock
    ) -> None:
        lease = await store.grant_lease(10)
        clock.advance(11)
        with pytest.raises(NotFound, match="lease"):
            await store.transact([], [Put("/b", b""), Put("/a", b"", lease)])
        assert await store.range("/") == []

    async def test_a_comparison_sees_that_a_lease_has_ended(
        self, store: MetadataStore, clock: ManualClock
    ) -> None:
        lease = await store.grant_lease(10)
        revision = await store.put("/claim", b"", lease=lease)
        clock.advance(11)
        held = await store.transact([Compare.unchanged("/claim", revision)], [Put("/x", b"")])
        taken = await store.transact([Compare.absent("/claim")], [Put("/claim", b"next")])
        assert (held.succeeded, taken.succeeded) == (False, True)

    async def test_a_watch_tells_of_keys_that_went_with_their_lease(
        self, store: MetadataStore, clock: ManualClock
    ) -> None:
        lease = await store.grant_lease(10)
        revision = await store.put("/a", b"", lease=lease)
        watching = asyncio.create_task(events(store, "/", revision, 1))
        clock.advance(11)
        assert told(await watching) == [("/a", None)]

    async def test_lease_ids_are_not_used_again(self, store: MetadataStore) -> None:
        first = await store.grant_lease(10)
        await store.revoke_lease(first)
        assert await store.grant_lease(10) > first > 0

    @pytest.mark.parametrize("ttl_s", [0, -1, 1e9])
    async def test_a_lease_needs_a_time_that_makes_sense(
        self, store: MetadataStore, ttl_s: float
    ) -> None:
        with pytest.raises(InvalidRequest, match="lease"):
            await store.grant_lease(ttl_s)

    # -- the end ---------------------------------------------------------------------------

    async def test_a_closed_store_says_so(self, store: MetadataStore) -> None:
        await store.put("/a", b"")
        await store.close()
        with pytest.raises(Unavailable, match="closed"):
            await store.get("/a")
        with pytest.raises(Unavailable, match="closed"):
            await store.put("/a", b"")
        await store.close()


class DurableMetadataConformance(MetadataConformance):
    """For stores that live on: also define ``again``, an async function that opens it once more."""

    async def test_everything_is_there_after_a_reopening(
        self, store: MetadataStore, again: Any
    ) -> None:
        await store.put("/a", b"1")
        await store.put("/a", b"2")
        lease = await store.grant_lease(10)
        await store.put("/leased", b"", lease=lease)
        before = await store.range("/")
        await store.close()
        reopened: MetadataStore = await again()
        assert await reopened.range("/") == before
        assert await reopened.revision() == before[-1].mod_revision
        assert await reopened.keep_alive(lease) is True
        assert told(await events(reopened, "/a", 0, 2)) == [("/a", b"1"), ("/a", b"2")]
        assert await reopened.put("/b", b"") == before[-1].mod_revision + 1

    async def test_two_at_once_see_each_others_writes(
        self, store: MetadataStore, again: Any
    ) -> None:
        other: MetadataStore = await again()
        watching = asyncio.create_task(events(other, "/w", 0, 2))
        revision = await store.put("/w", b"mine")
        won, lost = (
            await other.transact([Compare.unchanged("/w", revision)], [Put("/w", b"theirs")]),
            await store.transact([Compare.unchanged("/w", revision)], [Put("/w", b"mine")]),
        )
        assert (won.succeeded, lost.succeeded) == (True, False)
        assert told(await watching) == [("/w", b"mine"), ("/w", b"theirs")]
