"""Plain gRPC streaming: a servicer that answers every frame with an empty receipt, no more.

The same service, messages, channel and server options and event loop as the broker's; no log, no
checks. Run as a module it is the server; with an address and a file of frames it is the client, in
a process of its own, because our client changes how its process's memory is used again.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from benchmarks.measure import Stopwatch
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as rpc
from danube.wire.channels import channel_options, server_options

MODULE = "benchmarks.peers.streaming"


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


def write_frames(path: Path, frames: Sequence[bytes]) -> None:
    """Put frames into a file for :func:`stream_file`."""
    with path.open("wb") as file:
        for frame in frames:
            file.write(len(frame).to_bytes(4, "little") + frame)


def stream_file(url: str, path: Path) -> float:
    """Stream a file's frames from a process of its own; returns the seconds it took."""
    command = [sys.executable, "-m", MODULE, url, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


async def _client(url: str, frames: Sequence[bytes]) -> None:
    async with grpc.aio.insecure_channel(url, options=channel_options()) as channel:
        await channel.channel_ready()
        stub = rpc.BatchServiceStub(channel)
        await _stream(stub, frames)
        print(await _stream(stub, frames))


def _read_frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        yield data[start:at]


async def _stream(stub: object, frames: Sequence[bytes]) -> float:
    """Send all frames over one stream and read all receipts; returns the seconds it took."""
    call = cast(Any, stub).Publish()
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


def main(arguments: Sequence[str]) -> None:
    """Serve until SIGTERM, in the broker's kind of event loop; or stream ``URL FILE``."""
    if arguments:
        url, path = arguments
        asyncio.run(_client(url, list(_read_frames(Path(path).read_bytes()))))
        return
    import uvloop

    uvloop.run(_serve())


if __name__ == "__main__":
    main(sys.argv[1:])
