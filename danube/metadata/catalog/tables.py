"""Which topics have a Delta table: no record, nothing to fence."""

from __future__ import annotations

from danube.core.errors import OwnershipLost
from danube.core.names import TopicId
from danube.core.stores import Put
from danube.metadata import keys
from danube.metadata.catalog.claims import Claims
from danube.metadata.records import Claim, encode


class Tables(Claims):
    """The family of table records."""

    async def table(self, topic_id: TopicId) -> bool:
        """Whether the topic has a table."""
        return await self.store.get(keys.table(topic_id)) is not None

    async def record_table(self, claim: Claim) -> None:
        """Record that the claim's topic has a table; idempotent.

        Raises:
            OwnershipLost: the claim is not in force any more.
        """
        key = keys.table(claim.partition.topic_id)
        record = encode({"epoch": claim.epoch, "created_us": self._clock.now_us()})
        if await self._applied([self.compare(claim)], [Put(key, record)]) is None:
            raise OwnershipLost(
                f"broker {claim.broker_id} no longer owns partition {claim.partition} and may not "
                "create its table; look the owner up again"
            )
