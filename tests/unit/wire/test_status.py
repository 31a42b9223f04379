from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from danube.core import errors
from danube.core.errors import DanubeError
from danube.core.stores import ObjectNotFound
from danube.wire import status
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as rpc
from danube.wire.channels import open_channel, server_options

ALL_CLASSES = sorted(
    {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, DanubeError)
    },
    key=lambda kind: kind.__name__,
)
every_class = pytest.mark.parametrize("kind", ALL_CLASSES, ids=lambda kind: kind.__name__)

Behaviour = Callable[[], None]


class Servicer(rpc.BatchServiceServicer):
    """Does in every kind of method what the test asks for."""

    def __init__(self) -> None:
        self.behave: Callable[[], Any] = lambda: None
        self.closed = asyncio.Event()

    async def Lookup(self, request: pb.LookupRequest, context: status.Context) -> pb.LookupResponse:
        self.behave()
        return pb.LookupResponse(topic=request.topic)

    async def Read(
        self, request: pb.ReadRequest, context: status.Context
    ) -> AsyncIterator[pb.ReadResponse]:
        yield pb.ReadResponse(base_offset=7)
        self.behave()

    async def Stage(
        self, request_iterator: AsyncIterator[pb.StageRequest], context: status.Context
    ) -> pb.StageResponse:
        async for _ in request_iterator:
            self.behave()
        return pb.StageResponse()

    async def Publish(
        self, request_iterator: AsyncIterator[pb.PublishRequest], context: status.Context
    ) -> AsyncIterator[pb.PublishResponse]:
        try:
            async for _ in request_iterator:
                yield pb.PublishResponse()
                self.behave()
        finally:
            self.closed.set()

    async def Plan(self, request: pb.PlanRequest, context: status.Context) -> pb.PlanResponse:
        await context.abort(grpc.StatusCode.ABORTED, "chosen by the handler")


def new_servicer() -> Servicer:
    # The methods that no test calls stay those of the generated base class.
    return cast(Servicer, cast(Any, Servicer)())


@asynccontextmanager
async def serving(servicer: Servicer) -> AsyncIterator[rpc.BatchServiceAsyncStub]:
    server = grpc.aio.server(interceptors=[status.GuardInterceptor()], options=server_options())
    rpc.add_BatchServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = open_channel(f"127.0.0.1:{port}")
    try:
        yield rpc.BatchServiceStub(channel)
    finally:
        await channel.close(None)
        await server.stop(None)


def raising(error: BaseException) -> Callable[[], Any]:
    def behave() -> None:
        raise error

    return behave


@every_class
def test_every_error_has_a_status(kind: type[DanubeError]) -> None:
    assert isinstance(status.status_of(kind("x")), grpc.StatusCode)


@every_class
def test_a_failure_in_a_stream_is_raised_as_the_same_class(kind: type[DanubeError]) -> None:
    raised = status.error_of(status.failure_of(kind("what, to what, what to do")))
    assert type(raised) is kind
    assert str(raised) == "what, to what, what to do"


def test_only_three_codes_may_be_sent_again() -> None:
    assert {code.name for code in status.RETRYABLE_CODES} == {
        "UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "RESOURCE_EXHAUSTED",
    }
    retryable = {kind.__name__ for kind in ALL_CLASSES if status.is_retryable(kind("x"))}
    assert retryable == {
        "Unavailable",
        "DeadlineExceeded",
        "ResourceExhausted",
        "DiskFull",
        "StagedFull",
        "MemoryFull",
        "OwnershipLost",
    }


def test_every_code_of_grpc_has_a_class() -> None:
    for code in set(grpc.StatusCode) - {grpc.StatusCode.OK}:
        failure = pb.Failure(code=code.value[0], message="x")
        assert isinstance(status.error_of(failure), DanubeError)


def test_a_finer_class_of_a_room_travels_as_the_core_error_it_specialises() -> None:
    failure = status.failure_of(ObjectNotFound("no object under that key"))
    assert failure.reason == "NotFound"
    assert type(status.error_of(failure)) is errors.NotFound


def test_a_class_that_only_a_newer_broker_knows_falls_back_to_its_code() -> None:
    failure = pb.Failure(
        code=grpc.StatusCode.FAILED_PRECONDITION.value[0], reason="FrozenByMoonlight", message="x"
    )
    assert type(status.error_of(failure)) is errors.FailedPrecondition


def test_a_class_name_from_the_wire_never_reaches_beyond_the_error_tree() -> None:
    failure = pb.Failure(code=grpc.StatusCode.NOT_FOUND.value[0], reason="annotations", message="x")
    assert type(status.error_of(failure)) is errors.NotFound


@every_class
async def test_an_error_of_a_call_arrives_as_the_same_class(kind: type[DanubeError]) -> None:
    servicer = new_servicer()
    servicer.behave = raising(kind("the broker's words: größer als 4 MiB"))
    async with serving(servicer) as stub:
        with pytest.raises(kind, match="größer als 4 MiB") as caught, status.danube_errors():
            await stub.Lookup(pb.LookupRequest(topic="/a/b"))
    assert type(caught.value) is kind
    cause = caught.value.__cause__
    assert isinstance(cause, grpc.aio.AioRpcError)
    assert cause.code() is status.status_of(kind("x"))


async def test_a_reply_stream_gives_what_came_before_its_error() -> None:
    servicer = new_servicer()
    servicer.behave = raising(errors.DataLost("offsets [8, 9) were lost"))
    got: list[int] = []
    async with serving(servicer) as stub:
        replies = stub.Read(pb.ReadRequest())

        async def collect() -> None:
            with status.danube_errors():
                async for reply in replies:
                    got.append(reply.base_offset)

        with pytest.raises(errors.DataLost):
            await collect()
    assert got == [7]


async def test_errors_of_request_streams_arrive_too() -> None:
    servicer = new_servicer()
    servicer.behave = raising(errors.StagedFull("raise broker.staged_bytes"))

    async def requests() -> AsyncIterator[pb.StageRequest]:
        yield pb.StageRequest()

    async with serving(servicer) as stub:
        with pytest.raises(errors.StagedFull), status.danube_errors():
            await stub.Stage(requests())


async def test_a_cancelled_stream_closes_its_handler_at_once() -> None:
    servicer = new_servicer()
    async with serving(servicer) as stub:
        call = stub.Publish(None)
        await call.write(pb.PublishRequest(frame=b""))
        await call.read()
        call.cancel()
        await asyncio.wait_for(servicer.closed.wait(), 10)


async def test_an_unexpected_exception_becomes_an_id_that_the_log_explains(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servicer = new_servicer()
    servicer.behave = raising(ZeroDivisionError("secret internals"))
    with caplog.at_level(logging.ERROR, logger="danube"):
        async with serving(servicer) as stub:
            with pytest.raises(DanubeError) as caught, status.danube_errors():
                await stub.Lookup(pb.LookupRequest())
    message = str(caught.value)
    assert type(caught.value) is DanubeError
    assert "secret" not in message
    error_id = message.rsplit(" ", 1)[1]
    (record,) = [entry for entry in caplog.records if entry.exc_info]
    assert error_id in repr(record.__dict__)
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_status_that_the_handler_chose_itself_is_left_alone() -> None:
    async with serving(new_servicer()) as stub:
        expected = pytest.raises(errors.FailedPrecondition, match="ABORTED: chosen by the handler")
        with expected, status.danube_errors():
            await stub.Plan(pb.PlanRequest())


@pytest.mark.parametrize("char", ["x", "%", "é", "🌊"])
async def test_a_very_long_message_still_arrives(char: str) -> None:
    servicer = new_servicer()
    servicer.behave = raising(errors.InvalidFrame(char * 100_000))
    async with serving(servicer) as stub:
        with pytest.raises(errors.InvalidFrame) as caught, status.danube_errors():
            await stub.Lookup(pb.LookupRequest())
    assert str(caught.value) == status.sendable(char * 100_000)
    assert len(str(caught.value)) >= 500


async def test_no_broker_at_the_address_says_what_was_attempted(unused_tcp_port: int) -> None:
    channel = open_channel(f"127.0.0.1:{unused_tcp_port}")
    stub = rpc.BatchServiceStub(channel)
    expected = pytest.raises(errors.Unavailable, match="looking /a/b up: no broker answers")
    with expected, status.danube_errors("looking /a/b up"):
        await stub.Lookup(pb.LookupRequest(topic="/a/b"))
    await channel.close(None)


def test_only_asynchronous_methods_can_be_guarded() -> None:
    def plain() -> None: ...

    with pytest.raises(TypeError, match="neither a coroutine function"):
        status.guarded(plain)
