"""Options of gRPC channels and servers, the same on both sides, and how a service URL is written.

gRPC's defaults do not fit: 4 MiB per message, retries of its own (ours know what is safe to send
again), two servers on one port (``SO_REUSEPORT``), and an HTTP proxy from the environment even for
a broker on this machine.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import grpc.aio

from danube.core.errors import InvalidRequest, Unsupported
from danube.core.limits import DEFAULT_MAX_FRAME_BYTES, GRPC_MESSAGE_OVERHEAD_BYTES, MIB
from danube.wire.memory import keep_freed_blocks

DEFAULT_PORT: Final = 6650
DEFAULT_SERVICE_URL: Final = f"127.0.0.1:{DEFAULT_PORT}"

KEEPALIVE_TIME_MS: Final = 20_000
"""Ping a connection that was silent for so long: a vanished peer is found out."""

KEEPALIVE_TIMEOUT_MS: Final = 10_000
"""Give the connection up when a ping is not answered for so long."""

MIN_PING_INTERVAL_MS: Final = 5_000
"""A server bears pings this often; it must be less than what clients send."""

MAX_CONCURRENT_STREAMS: Final = 4096
"""Calls of one connection at a time; further ones wait in the client."""

MAX_CHANNEL_MESSAGE_BYTES: Final = 64 * MIB
"""Largest gRPC message a client takes: room for topics with raised limits, and still a bound."""

_HOST: Final = re.compile(r"[\w.-]+|[0-9a-fA-F:.%\w]*:[0-9a-fA-F:.%\w]*")

Options = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a broker."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether this is the machine itself, by literal address or as ``localhost``."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, what: str = "service URL") -> Address:
    """Parse ``host``, ``host:port``, ``[v6]:port`` or any of them behind ``http://``.

    Raises:
        InvalidRequest: another shape, or a port above 65535.
        Unsupported: ``https://``; there is no TLS yet.
    """
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme, rest = "http", text.strip()
    if scheme == "https":
        raise Unsupported(f"the {what} {text!r} asks for TLS, which is not built yet; use http://")
    try:
        parts = urlsplit(f"//{rest.rstrip('/')}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    extra = parts.path or parts.query or parts.fragment or parts.username is not None
    if not host or not _HOST.fullmatch(host) or extra or scheme != "http":
        raise InvalidRequest(
            f"{text!r} is not a {what}; write it as host:port, for example {DEFAULT_SERVICE_URL}"
        )
    return Address(host, DEFAULT_PORT if port is None else port)


def target_of(service_url: str) -> str:
    """``host:port`` as gRPC dials it. Raises InvalidRequest, Unsupported: see parse_address."""
    return str(parse_address(service_url))


def channel_options(*, max_message_bytes: int = MAX_CHANNEL_MESSAGE_BYTES) -> Options:
    """Options of a channel to a broker, asyncio or blocking.

    Args:
        max_message_bytes: largest gRPC message, both ways; how large a frame may be is up to the
            broker and the topic, which say so when a stream is opened.
    """
    return [
        *_shared(max_message_bytes),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # One connection per channel, also of several clients in one process.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_http_proxy", 0),
    ]


def server_options(*, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> Options:
    """Options of a server that takes frames of up to ``max_frame_bytes``."""
    return [
        *_shared(max_frame_bytes + GRPC_MESSAGE_OVERHEAD_BYTES),
        # With it a second broker on the same port would start and steal half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ]


def _shared(max_message_bytes: int) -> Options:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def open_channel(
    service_url: str, *, max_message_bytes: int = MAX_CHANNEL_MESSAGE_BYTES
) -> grpc.aio.Channel:
    """An unconnected asyncio channel to ``service_url``; it connects at the first call.

    Raises:
        InvalidRequest, Unsupported: the URL cannot be used (see :func:`parse_address`).
    """
    keep_freed_blocks()
    options = channel_options(max_message_bytes=max_message_bytes)
    return grpc.aio.insecure_channel(target_of(service_url), options=options)
