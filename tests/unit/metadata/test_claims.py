"""Claims, epochs, ceilings and tables: who may do what to a partition."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from danube.core.errors import OwnershipLost, TopicNotFound, Unavailable
from danube.core.names import PartitionId
from danube.metadata.catalog import BrokerRecord, Catalog, Claim, Holder
from danube.metadata.memory import MemoryMetadata
from danube.metadata.sqlite import SqliteMetadata
from tests.clocks import CountedIds, ManualClock
from tests.unit.metadata.records import created, some_id

PARTITIONS = 10_000


async def partition_of(catalog: Catalog, name: str = "/ns/t") -> PartitionId:
    return PartitionId((await created(catalog, name)).topic_id, 0)


async def in_force(memory: MemoryMetadata, catalog: Catalog, claim: Claim) -> bool:
    return (await memory.transact([catalog.compare(claim)], [])).succeeded


async def test_every_claim_has_a_higher_epoch_than_any_before(catalog: Catalog) -> None:
    partition = await partition_of(catalog)
    claims = [await catalog.claim(partition, "b", incarnation) for incarnation in "abc"]
    assert await catalog.current(partition) == claims[-1]
    await catalog.release(claims[-1], claims[-1])
    claims.append(await catalog.claim(partition, "b", "d"))
    assert [claim.epoch for claim in claims] == [1, 2, 3, 4]


async def test_an_epoch_is_not_used_again_after_the_claim_went_with_its_lease(
    catalog: Catalog, clock: ManualClock
) -> None:
    partition = await partition_of(catalog)
    lease = await catalog.store.grant_lease(10)
    first = await catalog.claim(partition, "b", "one", lease=lease)
    clock.advance(11)
    assert await catalog.current(partition) is None
    assert await catalog.last_holder(partition) == Holder("b", "one", 1, released=False)
    assert (await catalog.claim(partition, "c", "two")).epoch == first.epoch + 1


async def test_a_new_claim_ends_the_one_before(catalog: Catalog, memory: MemoryMetadata) -> None:
    partition = await partition_of(catalog)
    old = await catalog.claim(partition, "b", "one")
    new = await catalog.claim(partition, "b", "two")
    assert (await in_force(memory, catalog, old), await in_force(memory, catalog, new)) == (
        False,
        True,
    )
    with pytest.raises(OwnershipLost, match="no longer owns"):
        await catalog.raise_ceiling(old, 10)
    with pytest.raises(OwnershipLost, match="may not create its table"):
        await catalog.record_table(old)
    with pytest.raises(OwnershipLost, match="no longer owns"):
        await catalog.raise_epoch(old, 1)
    with pytest.raises(OwnershipLost, match="no longer owns"):
        await catalog.release(old, old)
    assert await catalog.ceiling(partition) == 0
    assert await catalog.table(partition.topic_id) is False


async def test_of_two_that_claim_at_once_each_gets_an_epoch_and_one_stays(
    catalog: Catalog,
) -> None:
    partition = await partition_of(catalog)
    claims = await asyncio.gather(*(catalog.claim(partition, "b", str(n)) for n in range(8)))
    assert sorted(claim.epoch for claim in claims) == list(range(1, 9))
    assert await catalog.current(partition) == max(claims, key=lambda claim: claim.epoch)


async def test_a_live_brokers_partition_is_not_taken(catalog: Catalog, clock: ManualClock) -> None:
    partition = await partition_of(catalog)
    await catalog.register_broker(BrokerRecord("old", "i", "host:1"), ttl_s=10)
    await catalog.claim(partition, "old", "i")
    with pytest.raises(Unavailable, match="broker old, which is alive"):
        await catalog.claim(partition, "new", "j")
    clock.advance(11)
    assert (await catalog.claim(partition, "new", "j")).epoch == 2


async def test_live_brokers_are_listed_while_their_lease_lives(
    catalog: Catalog, clock: ManualClock
) -> None:
    record = BrokerRecord("a", "i", "host:1")
    lease = await catalog.register_broker(record, ttl_s=10)
    await catalog.register_broker(BrokerRecord("b", "j", "host:2"), ttl_s=5)
    clock.advance(6)
    assert await catalog.store.keep_alive(lease)
    assert await catalog.brokers() == [record]
    assert await catalog.broker("a") == record
    assert await catalog.broker("b") is None


async def test_raising_the_epoch_replaces_claim_and_counter_together(
    catalog: Catalog, memory: MemoryMetadata
) -> None:
    partition = await partition_of(catalog)
    old = await catalog.claim(partition, "b", "i")
    raised = await catalog.raise_epoch(old, 17)
    assert raised.epoch == 17
    assert await catalog.current(partition) == raised
    assert not await in_force(memory, catalog, old)
    assert (await catalog.raise_epoch(raised, 3)).epoch == 18
    assert (await catalog.claim(partition, "b", "j")).epoch == 19


async def test_a_raised_claim_still_goes_with_its_lease(
    catalog: Catalog, clock: ManualClock
) -> None:
    partition = await partition_of(catalog)
    lease = await catalog.store.grant_lease(10)
    await catalog.raise_epoch(await catalog.claim(partition, "b", "i", lease=lease), 5)
    clock.advance(11)
    assert await catalog.current(partition) is None


async def test_a_release_says_whose_journal_proves_the_tail(catalog: Catalog) -> None:
    partition = await partition_of(catalog)
    assert await catalog.last_holder(partition) is None
    claim = await catalog.claim(partition, "b", "i")
    assert await catalog.last_holder(partition) == Holder("b", "i", 1, released=False)
    await catalog.release(claim, claim)
    assert await catalog.current(partition) is None
    assert await catalog.last_holder(partition) == Holder("b", "i", 1, released=True)
    await catalog.claim(partition, "c", "j")
    assert await catalog.last_holder(partition) == Holder("c", "j", 2, released=False)


async def test_the_ceiling_never_goes_down(catalog: Catalog) -> None:
    claim = await catalog.claim(await partition_of(catalog), "b", "i")
    assert await catalog.ceiling(claim.partition) == 0
    for to, stands in ((100, 100), (50, 100), (101, 101)):
        await catalog.raise_ceiling(claim, to)
        assert await catalog.ceiling(claim.partition) == stands


async def test_a_ceiling_below_the_reserved_one_still_checks_the_claim(catalog: Catalog) -> None:
    partition = await partition_of(catalog)
    old = await catalog.claim(partition, "b", "i")
    await catalog.raise_ceiling(old, 100)
    await catalog.claim(partition, "b", "j")
    with pytest.raises(OwnershipLost):
        await catalog.raise_ceiling(old, 50)


async def test_ceiling_and_table_outlive_the_claim(catalog: Catalog) -> None:
    claim = await catalog.claim(await partition_of(catalog), "b", "i")
    await catalog.raise_ceiling(claim, 7)
    await catalog.record_table(claim)
    await catalog.record_table(claim)
    await catalog.release(claim, claim)
    assert await catalog.ceiling(claim.partition) == 7
    assert await catalog.table(claim.partition.topic_id) is True


async def test_a_topic_that_is_gone_cannot_be_claimed(catalog: Catalog) -> None:
    with pytest.raises(TopicNotFound):
        await catalog.claim(PartitionId(some_id(7), 0), "b", "i")


async def test_the_owner_of_a_deleted_topic_loses_it(catalog: Catalog) -> None:
    record = await created(catalog, "/ns/t")
    claim = await catalog.claim(PartitionId(record.topic_id, 0), "b", "i")
    await catalog.delete_topic(record)
    with pytest.raises(OwnershipLost):
        await catalog.raise_ceiling(claim, 10)


async def test_ten_thousand_partitions_are_claimed_in_few_synced_transactions(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = SqliteMetadata(tmp_path / "m", clock)
    try:
        catalog = Catalog(store, clock, CountedIds())
        records = [
            await created(catalog, f"/ns/t{n}", partitions=2_000, partitioned=True)
            for n in range(5)
        ]
        wanted = [PartitionId(r.topic_id, p) for r in records for p in range(r.partitions)]
        assert len(wanted) == PARTITIONS
        before = await store.revision()
        claims = await catalog.claim_many(wanted, "b", "i")
        assert [claim.partition for claim in claims] == wanted
        assert await store.revision() - before == -(-PARTITIONS // 60)
        for claim in (claims[0], claims[-1]):
            assert await catalog.current(claim.partition) == claim
            await catalog.raise_ceiling(claim, 5)
    finally:
        await store.close()
