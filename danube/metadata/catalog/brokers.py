"""Registrations of live brokers, each under a lease."""

from __future__ import annotations

from danube.metadata import keys
from danube.metadata.catalog.base import CatalogBase
from danube.metadata.records import BrokerRecord


class Brokers(CatalogBase):
    """The family of registrations."""

    async def register_broker(self, record: BrokerRecord, ttl_s: float) -> int:
        """Register a live broker; returns the lease to keep alive (``store.keep_alive``).

        An earlier registration of the same broker is replaced when it is of the same data
        directory's earlier incarnation, which has ended: the directory is locked.

        Args:
            record: of this process.
            ttl_s: how long the registration stays without being kept alive, in seconds.
        """
        lease = await self.store.grant_lease(ttl_s)
        await self.store.put(keys.broker(record.broker_id), record.to_bytes(), lease=lease)
        return lease

    async def broker(self, broker_id: str) -> BrokerRecord | None:
        """The registration of a live broker."""
        key = keys.broker(broker_id)
        found = await self.store.get(key)
        return None if found is None else BrokerRecord.from_bytes(key, found.value)

    async def brokers(self) -> list[BrokerRecord]:
        """Every live broker, by id."""
        found = await self.store.range(keys.BROKERS)
        return [BrokerRecord.from_bytes(item.key, item.value) for item in found]
