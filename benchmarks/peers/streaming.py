"""Plain gRPC streaming: a servicer that answers every frame with an empty receipt, no more.

The same service, messages, server options and event loop as the broker's; no log, no checks.
Run as a module it is the server; :func:`stream_frames` is the client.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import grpc
import grpc.aio

from benchmarks.measure import Stopwatch
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as rpc
from danube.wire.channels import open_channel, server_options


async def receive(
    requests: AsyncIterator[pb.PublishRequest], context: object
) -> AsyncIterator[pb.PublishResponse]:
    """One receipt per frame."""
    async for _ in requests:
        yield pb.PublishResponse(receipt=pb.Receipt())


def _handler() -> grpc.GenericRpcHandler[Any, Any]:
    publish = grpc.stream_stream_rpc_method_handler(
        cast(Any, receive),
        request_deserializer=pb.PublishRequest.FromString,
        response_serializer=pb.PublishResponse.SerializeToString,
    )
    service = pb.DESCRIPTOR.services_by_name["BatchService"].full_name
    return grpc.method_handlers_generic_handler(service, {"Publish": publish})


async def _serve() -> None:
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((_handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(f"peer ready on 127.0.0.1:{port}", flush=True)
    await stopped.wait()
    await server.stop(None)


async def stream_frames(url: str, frames: Sequence[bytes]) -> float:
    """Send all frames over one stream and read all receipts; returns the seconds it took."""
    async with open_channel(url) as channel:
        await channel.channel_ready()
        call: Any = cast(Any, rpc.BatchServiceStub(channel)).Publish()
        watch = Stopwatch()
        writing = asyncio.create_task(_write(call, frames))
        receipts = 0
        async for _ in call:
            receipts += 1
        await writing
        if receipts != len(frames):
            raise RuntimeError(f"{receipts} receipts for {len(frames)} frames")
        return watch.seconds


async def _write(call: Any, frames: Sequence[bytes]) -> None:
    for frame in frames:
        await call.write(pb.PublishRequest(frame=frame))
    await call.done_writing()


def main() -> None:
    """Serve until SIGTERM, in the broker's kind of event loop."""
    import uvloop

    uvloop.run(_serve())


if __name__ == "__main__":
    main()
