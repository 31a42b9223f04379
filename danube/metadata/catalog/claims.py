"""Claims: which broker owns a partition, under which epoch, up to which offset ceiling.

The epoch counter is a key of its own that no release and no lease deletes, raised in the claim's
own transaction: an epoch is given out once. It also remembers the last holder, so that a claim
that went with its lease still says whose journal would prove the partition's tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from danube.core.errors import OwnershipLost, TopicNotFound, Unavailable
from danube.core.names import PartitionId
from danube.core.stores import Compare, Delete, KeyValue, Put
from danube.metadata import keys
from danube.metadata.catalog.base import RACES, CatalogBase, contended, revision_of
from danube.metadata.records import Claim, Holder, decode, encode

CLAIMS_PER_TRANSACTION: Final = 60
"""Claims taken at once by ``claim_many``; two keys each and common bounds of 128 operations."""


class JournalIdentity(Protocol):
    """Whose journal proves what was released."""

    @property
    def broker_id(self) -> str:
        """Of the broker."""

    @property
    def incarnation(self) -> str:
        """Of its process."""


class Claims(CatalogBase):
    """The families of claims, epochs and offset ceilings."""

    # -- reading ---------------------------------------------------------------------------

    async def current(self, partition: PartitionId) -> Claim | None:
        """The claim in force, or None."""
        return _claim(partition, await self.store.get(keys.claim(partition)))

    async def last_holder(self, partition: PartitionId) -> Holder | None:
        """Who claimed the partition last, whether or not that claim is still in force."""
        return _holder(await self.store.get(keys.epoch(partition)))

    def compare(self, claim: Claim) -> Compare:
        """What holds as long as the claim and its epoch are in force."""
        return Compare.unchanged(keys.claim(claim.partition), claim.revision)

    # -- claiming --------------------------------------------------------------------------

    async def claim(
        self, partition: PartitionId, broker_id: str, incarnation: str, *, lease: int = 0
    ) -> Claim:
        """Take a partition under the next epoch.

        A claim of one's own, of an earlier incarnation, or of a broker that is not registered any
        more is taken over.

        Args:
            partition: what to claim.
            broker_id: of this broker.
            incarnation: of this process.
            lease: the claim goes with it; 0 for never.

        Raises:
            TopicNotFound: the topic does not exist (any more).
            Unavailable: a live broker owns the partition.
        """
        (claim,) = await self.claim_many([partition], broker_id, incarnation, lease=lease)
        return claim

    async def claim_many(
        self, partitions: Sequence[PartitionId], broker_id: str, incarnation: str, *, lease: int = 0
    ) -> list[Claim]:
        """Take many partitions, in few transactions; each as by ``claim``.

        Raises:
            TopicNotFound, Unavailable: as ``claim`` does; what was claimed before stays claimed.
        """
        claimed: list[Claim] = []
        for first in range(0, len(partitions), CLAIMS_PER_TRANSACTION):
            some = partitions[first : first + CLAIMS_PER_TRANSACTION]
            claimed += await self._claim_some(some, broker_id, incarnation, lease)
        return claimed

    async def _claim_some(
        self, partitions: Sequence[PartitionId], broker_id: str, incarnation: str, lease: int
    ) -> list[Claim]:
        for _ in range(RACES):
            compares, found = await self._before_claim(partitions, broker_id)
            wanted = [
                Claim(item, broker_id, incarnation, _next_epoch(epoch, held), 0)
                for item, (epoch, held) in zip(partitions, found, strict=True)
            ]
            puts: list[Put] = []
            for claim in wanted:
                puts += _puts(claim, lease)
            revision = await self._applied(compares, puts)
            if revision is not None:
                return [_at(claim, revision) for claim in wanted]
        raise contended(f"the claim of {partitions[0]}")

    async def _before_claim(
        self, partitions: Sequence[PartitionId], broker_id: str
    ) -> tuple[list[Compare], list[tuple[KeyValue | None, Claim | None]]]:
        names = [keys.epoch(p) for p in partitions] + [keys.claim(p) for p in partitions]
        topics = list(dict.fromkeys(keys.topic_id(p.topic_id) for p in partitions))
        read = await self.store.get_many(names + topics)
        compares = [
            Compare.unchanged(name, revision_of(item))
            for name, item in zip(names, read, strict=False)
        ]
        count = len(partitions)
        for name, item in zip(topics, read[2 * count :], strict=True):
            if item is None:
                raise TopicNotFound(f"topic {name.rpartition('/')[2]} does not exist (any more)")
            # A claim of a topic deleted meanwhile would never be removed.
            compares.append(Compare.unchanged(name, item.mod_revision))
        epochs, claims = read[:count], read[count : 2 * count]
        held = [_claim(p, item) for p, item in zip(partitions, claims, strict=True)]
        compares += await self._holders_are_gone(held, broker_id)
        return compares, list(zip(epochs, held, strict=True))

    async def _holders_are_gone(
        self, held: Sequence[Claim | None], broker_id: str
    ) -> list[Compare]:
        others = {c.broker_id: c for c in held if c is not None and c.broker_id != broker_id}
        names = {holder: keys.broker(holder) for holder in others}
        for holder, found in zip(
            names, await self.store.get_many(list(names.values())), strict=True
        ):
            if found is not None:
                raise Unavailable(
                    f"partition {others[holder].partition} belongs to broker {holder}, which is "
                    "alive; look its owner up again"
                )
        return [Compare.absent(name) for name in names.values()]

    async def raise_epoch(self, claim: Claim, at_least: int) -> Claim:
        """Raise counter and claim together, to ``at_least`` or the next epoch.

        Raises:
            OwnershipLost: the claim is not in force any more.
        """
        for _ in range(RACES):
            found, held = await self.store.get_many(
                [keys.epoch(claim.partition), keys.claim(claim.partition)]
            )
            self._still(claim, held)
            lease = 0 if held is None else held.lease
            epoch = max(at_least, _next_epoch(found, claim))
            raised = Claim(claim.partition, claim.broker_id, claim.incarnation, epoch, 0)
            compares = [
                self.compare(claim),
                Compare.unchanged(keys.epoch(claim.partition), revision_of(found)),
            ]
            revision = await self._applied(compares, _puts(raised, lease))
            if revision is not None:
                return _at(raised, revision)
        raise contended(f"the epoch of {claim.partition}")

    async def release(self, claim: Claim, pointer: JournalIdentity) -> None:
        """Give a partition up in order.

        Args:
            claim: in force until now.
            pointer: whose journal holds the release.

        Raises:
            OwnershipLost: the claim is not in force any more.
        """
        holder = Holder(pointer.broker_id, pointer.incarnation, claim.epoch, released=True)
        operations: list[Put | Delete] = [
            Delete(keys.claim(claim.partition)),
            Put(keys.epoch(claim.partition), holder.to_bytes()),
        ]
        if await self._applied([self.compare(claim)], operations) is None:
            raise self._lost(claim)

    # -- the offset ceiling ----------------------------------------------------------------

    async def ceiling(self, partition: PartitionId) -> int:
        """Offsets at or above it were never handed out; 0 before the first reservation."""
        found = await self.store.get(keys.ceiling(partition))
        return 0 if found is None else int(decode(found.key, found.value)["offset"])

    async def ceiling_holder(self, partition: PartitionId) -> str | None:
        """The incarnation that reserved last; None before the first reservation.

        Nobody hands out an offset without a reservation of its own, so the journal of this
        incarnation, and of no later holder of the claim, proves the newest end of the log.
        """
        found = await self.store.get(keys.ceiling(partition))
        return None if found is None else str(decode(found.key, found.value)["incarnation"])

    async def raise_ceiling(self, claim: Claim, to: int) -> None:
        """Reserve the offsets below ``to`` in the claim's name; a ceiling never goes down.

        Raises:
            OwnershipLost: the claim is not in force any more.
        """
        key = keys.ceiling(claim.partition)
        for _ in range(RACES):
            found, held = await self.store.get_many([key, keys.claim(claim.partition)])
            self._still(claim, held)
            reached = 0 if found is None else int(decode(key, found.value)["offset"])
            compares = [self.compare(claim), Compare.unchanged(key, revision_of(found))]
            fields = {"offset": max(to, reached), "incarnation": claim.incarnation}
            if await self._applied(compares, [Put(key, encode(fields))]) is not None:
                return
        raise contended(f"the offset ceiling of {claim.partition}")

    # -- telling ---------------------------------------------------------------------------

    def _still(self, claim: Claim, held: KeyValue | None) -> None:
        if revision_of(held) != claim.revision:
            raise self._lost(claim)

    def _lost(self, claim: Claim) -> OwnershipLost:
        return OwnershipLost(
            f"broker {claim.broker_id} no longer owns partition {claim.partition} "
            f"(its epoch was {claim.epoch}); look the owner up again"
        )


def _puts(claim: Claim, lease: int) -> list[Put]:
    holder = Holder(claim.broker_id, claim.incarnation, claim.epoch, released=False)
    return [
        Put(keys.epoch(claim.partition), holder.to_bytes()),
        Put(keys.claim(claim.partition), claim.to_bytes(), lease),
    ]


def _next_epoch(counter: KeyValue | None, held: Claim | None) -> int:
    holder = _holder(counter)
    return max(holder.epoch if holder else 0, held.epoch if held else 0) + 1


def _at(claim: Claim, revision: int) -> Claim:
    return Claim(claim.partition, claim.broker_id, claim.incarnation, claim.epoch, revision)


def _claim(partition: PartitionId, found: KeyValue | None) -> Claim | None:
    if found is None:
        return None
    return Claim.from_bytes(found.key, found.value, partition, found.mod_revision)


def _holder(found: KeyValue | None) -> Holder | None:
    return None if found is None else Holder.from_bytes(found.key, found.value)
