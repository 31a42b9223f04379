"""From a kind's name to its state machine."""

from __future__ import annotations

from danube.core.errors import Unsupported
from danube.dispatch.cursor import Cursor
from danube.dispatch.exclusive import ExclusiveSubscription
from danube.dispatch.shared import SharedSubscription
from danube.dispatch.subscription import Limits, Subscription

KINDS: dict[str, type[Subscription]] = {
    "exclusive": ExclusiveSubscription,
    "shared": SharedSubscription,
}


def make_subscription(
    kind: str, cursor: Cursor, durable_offset: int, limits: Limits
) -> Subscription:
    """A subscription of a kind.

    Raises:
        Unsupported: the kind is not built yet.
    """
    found = KINDS.get(kind)
    if found is None:
        raise Unsupported(
            f"subscriptions of type {kind!r} are not built yet; use {' or '.join(KINDS)}"
        )
    return found(cursor, durable_offset, limits)
