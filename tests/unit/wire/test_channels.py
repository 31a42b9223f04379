from __future__ import annotations

import grpc.aio
import pytest

from danube.core.errors import InvalidRequest, Unsupported
from danube.core.limits import DEFAULT_MAX_FRAME_BYTES
from danube.wire import channels


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("127.0.0.1:6650", "127.0.0.1:6650"),
        ("127.0.0.1", "127.0.0.1:6650"),
        ("broker-1.example:7000", "broker-1.example:7000"),
        ("http://127.0.0.1:7000", "127.0.0.1:7000"),
        ("http://127.0.0.1:7000/", "127.0.0.1:7000"),
        (" localhost:1 ", "localhost:1"),
        ("[::1]:6650", "[::1]:6650"),
    ],
)
def test_a_service_url_is_a_host_and_a_port(text: str, target: str) -> None:
    assert channels.target_of(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":6650",
        "a:b",
        "a:70000",
        "ftp://a:1",
        "http://",
        "a:1/path",
        "u@a:1",
        "a:1?x",
        "::1",
        "a b",
        "a,b:1",
        "*:1",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is not a service URL; write it as host:port"):
        channels.parse_address(text)


def test_tls_is_refused_until_it_exists() -> None:
    with pytest.raises(Unsupported, match="TLS"):
        channels.parse_address("https://broker:6650")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
    ],
)
def test_loopback_is_told_apart_from_every_other_listen_address(host: str, loopback: bool) -> None:
    assert channels.parse_address(host).loopback is loopback


def test_a_whole_frame_and_its_envelope_fit_both_ways() -> None:
    for options in (channels.channel_options(), channels.server_options()):
        sizes = dict(options)
        assert sizes["grpc.max_receive_message_length"] > DEFAULT_MAX_FRAME_BYTES
        assert sizes["grpc.max_send_message_length"] > DEFAULT_MAX_FRAME_BYTES


def test_servers_bear_the_pings_that_clients_send() -> None:
    pings = dict(channels.channel_options())["grpc.keepalive_time_ms"]
    allowed = dict(channels.server_options())["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert allowed < pings


async def test_two_servers_cannot_share_a_port() -> None:
    first = grpc.aio.server(options=channels.server_options())
    port = first.add_insecure_port("127.0.0.1:0")
    await first.start()
    second = grpc.aio.server(options=channels.server_options())
    try:
        with pytest.raises(RuntimeError, match="bind"):
            second.add_insecure_port(f"127.0.0.1:{port}")
    finally:
        await first.stop(None)
        await second.stop(None)
