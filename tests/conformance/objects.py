"""What every object store must do: inherit the class and give it a fixture ``store``.

Buckets will inherit it too, so nothing here knows about directories.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from danube.core.errors import InvalidRequest
from danube.core.stores import ObjectChanged, ObjectExists, ObjectNotFound, ObjectStore
from danube.objects.streaming import Write, create_from


def keys(store: ObjectStore, prefix: str, start_after: str = "") -> list[str]:
    return [info.key for info in store.list(prefix, start_after=start_after)]


def race(count: int, run: Callable[[int], bool]) -> int:
    """How many of ``count`` threads that start together were told that they had won."""
    barrier = threading.Barrier(count)
    won: list[int] = []

    def contend(number: int) -> None:
        barrier.wait()
        if run(number):
            won.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(won)


class ObjectStoreConformance:
    """Inherit, and define the fixture ``store``."""

    def test_what_was_put_is_read_back_whole(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * 300
        info = store.put("a/b/c.bin", data)
        assert store.get("a/b/c.bin") == data
        assert (info.key, info.size_bytes) == ("a/b/c.bin", len(data))

    def test_any_buffer_can_be_stored(self, store: ObjectStore) -> None:
        store.put("a", bytearray(b"one"))
        store.create("b", memoryview(b"xtwo")[1:])
        assert (store.get("a"), store.get("b")) == (b"one", b"two")

    def test_an_object_can_be_created_as_it_is_made(self, store: ObjectStore) -> None:
        def produce(write: Write) -> None:
            for number in range(3):
                write(bytearray([number]) * 1000)

        info = create_from(store, "a/b", produce)
        assert store.get("a/b") == bytes(1000) + b"\1" * 1000 + b"\2" * 1000
        assert (info.key, info.size_bytes) == ("a/b", 3000)
        with pytest.raises(ObjectExists):
            create_from(store, "a/b", produce)

    def test_what_fails_while_it_is_made_is_no_object(self, store: ObjectStore) -> None:
        def produce(write: Write) -> None:
            write(b"half")
            raise ValueError("the other half is missing")

        with pytest.raises(ValueError, match="other half"):
            create_from(store, "k", produce)
        assert list(store.list("")) == []

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        store.create("empty", b"")
        assert store.get("empty") == b""
        assert store.head("empty").size_bytes == 0

    def test_put_replaces_and_changes_the_tag(self, store: ObjectStore) -> None:
        first = store.put("k", b"1")
        second = store.put("k", b"2")
        assert store.get("k") == b"2"
        assert first.etag != second.etag == store.head("k").etag

    def test_create_refuses_a_key_that_is_taken_and_leaves_it(self, store: ObjectStore) -> None:
        store.create("k", b"mine")
        with pytest.raises(ObjectExists, match="k"):
            store.create("k", b"theirs")
        assert store.get("k") == b"mine"

    def test_a_deleted_key_can_be_created_again(self, store: ObjectStore) -> None:
        store.create("k", b"1")
        store.delete(["k"])
        store.create("k", b"2")
        assert store.get("k") == b"2"

    def test_replace_needs_the_current_tag(self, store: ObjectStore) -> None:
        old = store.put("k", b"1")
        new = store.replace("k", b"2", old.etag)
        with pytest.raises(ObjectChanged, match="k"):
            store.replace("k", b"3", old.etag)
        assert store.get("k") == b"2"
        assert store.replace("k", b"4", new.etag).etag != new.etag

    def test_replace_needs_an_object(self, store: ObjectStore) -> None:
        with pytest.raises(ObjectNotFound, match="nothing"):
            store.replace("nothing", b"1", "tag")

    def test_an_absent_object_is_not_found_by_any_call(self, store: ObjectStore) -> None:
        store.put("dir/file", b"1")
        for key in ("nothing", "dir", "dir/file/below"):
            with pytest.raises(ObjectNotFound):
                store.get(key)
            with pytest.raises(ObjectNotFound):
                store.get_range(key, 0, 1)
            with pytest.raises(ObjectNotFound):
                store.head(key)

    def test_ranges_are_cut_at_the_end(self, store: ObjectStore) -> None:
        store.put("k", b"0123456789")
        assert store.get_range("k", 2, 3) == b"234"
        assert store.get_range("k", 8, 100) == b"89"
        assert store.get_range("k", 10, 5) == b""

    def test_a_listing_is_sorted_by_the_whole_key(self, store: ObjectStore) -> None:
        names = ["a-b/x", "a/b", "a/b/c-1", "a.b", "a0", "a/c/d", "b"]
        for name in [n for n in names if n != "a/b"]:
            store.put(name, b"")
        expected = sorted(n for n in names if n != "a/b")
        assert keys(store, "") == expected
        assert keys(store, "a") == [n for n in expected if n.startswith("a")]
        assert keys(store, "a/") == ["a/b/c-1", "a/c/d"]
        assert keys(store, "a/b/c") == ["a/b/c-1"]
        assert keys(store, "nothing/") == []

    def test_a_listing_starts_after_a_key(self, store: ObjectStore) -> None:
        names = [f"log/{number:03}.json" for number in range(12)]
        for name in names:
            store.put(name, b"")
        assert keys(store, "log/", "log/005.json") == names[6:]
        assert keys(store, "log/", "log/005") == names[5:]
        assert keys(store, "log/", "log/999") == []
        assert keys(store, "log/", "a") == names

    def test_a_listing_tells_size_and_time(self, store: ObjectStore) -> None:
        put = store.put("k", b"123")
        (listed,) = store.list("k")
        assert listed.size_bytes == 3
        assert listed.etag == put.etag
        assert listed.modified_us > 1_600_000_000_000_000

    def test_deleting_what_is_not_there_is_fine(self, store: ObjectStore) -> None:
        store.put("k", b"")
        store.delete(["k", "nothing", "no/thing"])
        store.delete([])
        assert keys(store, "") == []

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".a", "x" * 1025])
    def test_a_key_that_some_store_cannot_hold_is_refused(
        self, store: ObjectStore, key: str
    ) -> None:
        with pytest.raises(InvalidRequest, match="object key"):
            store.put(key, b"")

    def test_a_race_to_create_has_exactly_one_winner(self, store: ObjectStore) -> None:
        for attempt in range(5):

            def create(number: int, key: str = f"race-{attempt}") -> bool:
                try:
                    store.create(key, b"%d" % number * 1000)
                except ObjectExists:
                    return False
                return True

            assert race(8, create) == 1

    def test_a_race_to_replace_loses_no_count(self, store: ObjectStore) -> None:
        store.put("counter", b"0")

        def add(_: int) -> bool:
            for _ in range(5):
                while True:
                    tag, value = store.head("counter").etag, int(store.get("counter"))
                    try:
                        store.replace("counter", b"%d" % (value + 1), tag)
                        break
                    except ObjectChanged:
                        continue
            return True

        race(4, add)
        assert store.get("counter") == b"20"
