"""Staged sets, pins and sink commits at the partition that owns them.

The owner's half of the exactly-once sink: ``danube.log.decisions`` has the coordinator's.
Staged bodies are written to the journal once; a sink commit is one small state frame that gives
them offsets, so a decided part appears whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from danube.core.errors import FailedPrecondition, InvalidRequest, OwnershipLost
from danube.core.frames import Frame
from danube.journal.envelope import Entry, EntryKind, Position
from danube.log.extents import Extent
from danube.log.partition import PartitionLog
from danube.log.staging import Pin, SinkCommit, StagedBody, StagedSet
from danube.log.state import encode


class StagedSetMissing(FailedPrecondition):
    """A set named by a commit is not (or no longer) staged here: stage it again."""


class PartitionSinks:
    """What Spark sinks have staged and pinned in one partition."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._staging = log.state.staging
        self._finishing: dict[str, asyncio.Future[None]] = {}

    # -- staging ---------------------------------------------------------------------------

    def open_set(self, set_id: str, label: dict[str, Any]) -> StagedSet:
        """Begin a staged set.

        Raises:
            InvalidRequest: the id is in use.
        """
        self._log.check_serving()
        if set_id in self._staging.sets:
            raise InvalidRequest(f"staged set {set_id} exists already; every attempt makes an id")
        staged = StagedSet(set_id, {**label, "set": set_id}, self._log.context.clock.now_us())
        self._staging.sets[set_id] = staged
        return staged

    def stage(self, staged: StagedSet, frame: Frame) -> asyncio.Future[None]:
        """Write one frame of a set; the future resolves when it is durable.

        Raises:
            StagedFull: the staged share of the disk is spent.
            DiskFull, MemoryFull: later.
        """
        log, context = self._log, self._log.context
        log.check_serving()
        context.writer.admit(frame.total_bytes)
        context.staged.take(frame.total_bytes)
        entry = Entry(
            kind=EntryKind.STAGED,
            body=frame.body,
            header=frame.header_bytes,
            extra=encode("set", **staged.label),
            topic_id=log.record.topic_id.raw,
            partition=log.partition.partition,
            epoch=log.claim.epoch,
            append_time_us=staged.staged_us,
            essential=False,
        )
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(outcome: Sequence[Position] | BaseException) -> None:
            if isinstance(outcome, BaseException):
                if not future.cancelled():
                    future.set_exception(outcome)
                    future.exception()
                return
            if self._staging.sets.get(staged.set_id) is staged:
                body = StagedBody(outcome[0], frame.header.count, frame.total_bytes)
                staged.bodies.append(body)
            else:
                # Dropped meanwhile: whoever did that frees what was in the set then.
                self._free(outcome, frame.total_bytes)
            if not future.cancelled():
                future.set_result(None)

        try:
            context.writer.submit([entry], done)
        except BaseException:
            context.staged.give_back(frame.total_bytes)
            raise
        return future

    async def complete_set(self, staged: StagedSet) -> None:
        """Mark a set whole, durably; only then can it be pinned."""
        if self._staging.sets.get(staged.set_id) is not staged:
            raise StagedSetMissing(f"staged set {staged.set_id} was dropped; stage it again")
        body = encode("staged", set=staged.set_id, label=staged.label, at=staged.staged_us)
        # Before the frame is durable: a journal checkpoint that begins behind it must know. Who
        # pins the set does so behind it as well, and nobody does before we have answered.
        staged.complete = True
        await self._log.write_state(body)

    async def drop(self, set_ids: Sequence[str]) -> None:
        """Drop sets that no pin holds; pinned and unknown ones are left alone."""
        pinned = self._staging.pinned_sets()
        loose = [s for s in set_ids if s in self._staging.sets and s not in pinned]
        if not loose:
            return
        dropped = [self._staging.drop(set_id) for set_id in loose]
        await self._log.write_state(encode("drop", sets=loose))
        self._free_sets([item for item in dropped if item is not None])

    # -- pins ------------------------------------------------------------------------------

    async def pin(self, commit_id: str, label: dict[str, Any], set_ids: Sequence[str]) -> None:
        """Tie sets to a commit id; durable when this returns. Idempotent.

        Raises:
            StagedSetMissing: a set is not here, not complete, or pinned by another commit id.
        """
        self._log.check_serving()
        if commit_id in self._staging.finished:
            return
        pin = self._staging.pins.get(commit_id)
        if pin is None:
            self._check_pinnable(set_ids)
            pin = Pin(commit_id, label, tuple(set_ids), self._log.context.clock.now_us())
            self._staging.pins[commit_id] = pin
        # A repeated pin is written again: the first one may still be on its way to the disk.
        await self._log.write_state(
            encode("pin", c=commit_id, label=label, sets=list(pin.sets), at=pin.pinned_us)
        )

    def _check_pinnable(self, set_ids: Sequence[str]) -> None:
        taken = self._staging.pinned_sets()
        for set_id in set_ids:
            staged = self._staging.sets.get(set_id)
            if staged is None or not staged.complete or set_id in taken:
                why = "is pinned by another commit" if set_id in taken else "is not staged here"
                raise StagedSetMissing(f"staged set {set_id} {why}; run the batch again")

    async def unpin(self, commit_id: str) -> None:
        """Forget a pin whose commit id was aborted, and drop its sets."""
        pin = self._staging.pins.pop(commit_id, None)
        if pin is None:
            return
        dropped = [self._staging.drop(set_id) for set_id in pin.sets]
        await self._log.write_state(encode("unpin", c=commit_id))
        self._free_sets([item for item in dropped if item is not None])

    # -- sink commits ----------------------------------------------------------------------

    async def finish(self, commit_id: str) -> bool:
        """Give a decided commit id's sets their offsets; idempotent, durable when it returns.

        Returns False when this partition neither holds the pin nor remembers finishing it: its
        part is lost with the disk that held it.

        Raises:
            OwnershipLost: this broker may not append (any more).
        """
        running = self._finishing.get(commit_id)
        if running is not None:
            await asyncio.shield(running)
            return True
        if commit_id in self._staging.finished:
            return True
        pin = self._staging.pins.get(commit_id)
        if pin is None:
            return False
        count = sum(self._staging.sets[s].count for s in pin.sets if s in self._staging.sets)
        await self._log.ceiling.reserve(lambda: self._log.state.next_offset + count)
        self._log.check_serving()
        if commit_id not in self._finishing and commit_id in self._staging.pins:
            self._finishing[commit_id] = self._commit(commit_id)
        pending = self._finishing.get(commit_id)
        if pending is not None:
            await asyncio.shield(pending)
        return True

    def _commit(self, commit_id: str) -> asyncio.Future[None]:
        log, state = self._log, self._log.state
        pinned = self._staging.pins[commit_id].sets
        sets = [self._staging.sets[s] for s in pinned if s in self._staging.sets]
        base, now = state.next_offset, log.append_time_us()
        sink = SinkCommit(commit_id, base, now, tuple((s.set_id, s.count) for s in sets))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(outcome: Sequence[Position] | BaseException) -> None:
            log.settled()
            self._finishing.pop(commit_id, None)
            if isinstance(outcome, BaseException):
                future.set_exception(OwnershipLost(f"the journal failed: {outcome}"))
                future.exception()
                return
            log.context.staged.give_back(sum(item.bytes for item in sets))
            log.became_durable(_extents(base, now, sets))
            future.set_result(None)

        # A refused submission must leave everything as it was.
        log.context.writer.submit([log.state_entry(encode("sink", **sink.to_state()))], done)
        log.started()
        self._staging.finish(commit_id)
        state.next_offset, state.last_append_us = sink.end, now
        state.sinks[commit_id] = sink
        return future

    # -- upkeep ----------------------------------------------------------------------------

    def expired_sets(self, now_us: int, ttl_s: float) -> list[str]:
        """Unpinned sets older than ``ttl_s`` seconds."""
        pinned = self._staging.pinned_sets()
        oldest = now_us - int(ttl_s * 1e6)
        return [
            item.set_id
            for item in self._staging.sets.values()
            if item.staged_us < oldest and item.set_id not in pinned
        ]

    def broken_sets(self) -> list[str]:
        """Sets whose stream ended with an earlier incarnation before they were whole."""
        return [item.set_id for item in self._staging.sets.values() if not item.complete]

    def open_pins(self) -> list[Pin]:
        """Pins whose outcome is not known here."""
        return list(self._staging.pins.values())

    def _free_sets(self, sets: Sequence[StagedSet]) -> None:
        for item in sets:
            self._free([body.position for body in item.bodies], item.bytes)

    def _free(self, positions: Sequence[Position], size: int) -> None:
        self._log.context.journal.forget(positions)
        self._log.context.staged.give_back(size)


def _extents(base: int, append_time_us: int, sets: Sequence[StagedSet]) -> list[Extent]:
    found: list[Extent] = []
    for item in sets:
        for body in item.bodies:
            if body.count:
                found.append(Extent(base, body.count, append_time_us, body.bytes, body.position))
            base += body.count
    return found
