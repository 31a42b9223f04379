"""One broker: opens the rooms below, serves gRPC, and stops in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health as health_checking
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from danube.broker.administration import Administration
from danube.broker.directory import DataDirectory, open_directory
from danube.broker.gauges import Gauges
from danube.broker.queries import Queries
from danube.broker.reading import Reads
from danube.broker.services.admin import AdminServicer
from danube.broker.services.batch import BatchServicer
from danube.broker.settings import BrokerSettings, check_limits
from danube.broker.subscriptions import Subscriptions
from danube.broker.topics import Topics
from danube.broker.upkeep import BrokerUpkeep
from danube.core import telemetry
from danube.core.clock import SystemClock, SystemIds
from danube.core.errors import Corruption, InvalidSettings
from danube.core.stores import ObjectStore
from danube.journal.files import FileSystem, OsFiles
from danube.journal.journal import Journal
from danube.log.engine import EngineSettings, LogEngine
from danube.metadata.sqlite import SqliteMetadata
from danube.objects.local import LocalObjects
from danube.objects.metered import MeteredObjects
from danube.wire._generated import DanubeBatch_pb2 as pb
from danube.wire._generated import DanubeBatch_pb2_grpc as rpc
from danube.wire.channels import Address, parse_address, server_options
from danube.wire.memory import keep_freed_blocks
from danube.wire.status import GuardInterceptor

LOG = telemetry.get_logger(__name__)
SERVICES = tuple(
    pb.DESCRIPTOR.services_by_name[name].full_name for name in ("BatchService", "BatchAdmin")
)


class Broker:
    """A broker in this process. ``start`` serves, ``stop`` drains, rolls and releases."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.on_failure: Callable[[BaseException], None] = _log_failure
        self.files: FileSystem = OsFiles()
        """What the journal writes through: tests put faults in here, before ``start``."""
        self.store_at: Callable[[Path], ObjectStore] = _local_objects
        """Makes the object store of a directory; another place for faults."""
        self.url = ""
        self._server: grpc.aio.Server | None = None
        self._metrics: telemetry.MetricsServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._health = HealthServicer()

    async def start(self) -> None:
        """Recover, open the port and serve.

        Raises:
            InvalidSettings: the address is not allowed or in use, or the directory unusable.
            FailedPrecondition: another process uses the data directory.
            UnsupportedFormat: a newer version wrote it.
            Corruption: the journal is damaged.
        """
        check_limits(self.settings)
        listen = self._listen_address()
        keep_freed_blocks()
        self._server = grpc.aio.server(
            interceptors=[GuardInterceptor()],
            options=server_options(max_frame_bytes=self.settings.log.max_frame_bytes),
        )
        # The port comes first: a second broker must find out before it touches anything.
        self.url = self._bind(self._server, listen)
        self._clock, ids = SystemClock(), SystemIds()
        directory = open_directory(_data_dir(self.settings), ids)
        self._journal = await asyncio.to_thread(self._open_journal, directory)
        self._check_metadata(directory)
        self._metadata = SqliteMetadata(directory.metadata, self._clock)
        self.engine = await LogEngine.start(
            self._journal,
            store=self.store_at(directory.lake),
            metadata=self._metadata,
            broker_id=directory.broker_id,
            settings=EngineSettings(self.settings.log, self.settings.lake),
            clock=self._clock,
            ids=ids,
        )
        await self._serve(self._server)

    def _open_journal(self, directory: DataDirectory) -> Journal:
        journal = Journal.open(
            directory.journal,
            self.settings.journal,
            broker_id=directory.broker_id,
            files=self.files,
        )
        journal.on_failure = lambda error: self.on_failure(error)
        return journal

    def _check_metadata(self, directory: DataDirectory) -> None:
        """A journal whose topics nobody knows any more is kept, and not taken for deleted ones."""
        if self._journal.previous is not None and not directory.metadata.exists():
            raise Corruption(
                f"{directory.metadata} is missing, and the journal beside it holds topics that "
                "only it can name; restore it, or move the data directory away to start anew"
            )

    def _listen_address(self) -> Address:
        address = parse_address(self.settings.broker.listen, what="listen address")
        if not address.loopback and not self.settings.broker.insecure:
            raise InvalidSettings(
                f"{address} can be reached by other machines and there is no encryption or "
                "identity yet; listen on 127.0.0.1, or allow it with --insecure"
            )
        return address

    def _bind(self, server: grpc.aio.Server, address: Address) -> str:
        try:
            _try_bind(address)
            port = server.add_insecure_port(str(address))
        except (RuntimeError, OSError) as error:
            raise InvalidSettings(
                f"cannot listen on {address}; another process has the port, or the address is not "
                "of this machine: choose another with --listen"
            ) from error
        return self.settings.broker.advertise or str(Address(address.host, port))

    async def _serve(self, server: grpc.aio.Server) -> None:
        topics = Topics(self.engine)
        subscriptions = Subscriptions(topics, self.settings.dispatch, self._clock)
        queries = Queries(topics, self.settings.dispatch, self._clock)
        self.subscriptions, self.topics = subscriptions, topics
        self.upkeep = BrokerUpkeep(self.engine, topics, self.settings.upkeep)
        reads = Reads(topics, self.url, max_reads=self.settings.dispatch.max_reads_count)
        administration = Administration(topics, subscriptions, queries, reads)
        batch = BatchServicer(topics, subscriptions, queries, administration, reads)
        rpc.add_BatchServiceServicer_to_server(batch, server)
        rpc.add_BatchAdminServicer_to_server(AdminServicer(administration, self.upkeep), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (*SERVICES, health_checking.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        self._gauges = Gauges(self.engine, subscriptions)
        self._tasks = [
            asyncio.create_task(self.upkeep.run(), name="upkeep"),
            asyncio.create_task(subscriptions.run(), name="subscriptions"),
            asyncio.create_task(self._gauges.run(), name="gauges"),
        ]
        self._start_metrics()
        await server.start()
        for service in ("", *SERVICES):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        LOG.info("serving", url=self.url, metrics=self.metrics_url)

    def _start_metrics(self) -> None:
        if not self.settings.broker.metrics_listen:
            return
        address = parse_address(self.settings.broker.metrics_listen, what="metrics address")
        try:
            self._metrics = telemetry.serve_metrics(address.host, address.port)
        except OSError as error:
            raise InvalidSettings(
                f"cannot serve metrics on {address} ({error.strerror}); choose another address "
                "with --metrics-listen"
            ) from error

    @property
    def metrics_url(self) -> str:
        """Where Prometheus finds the metrics; empty when they are off."""
        found = self._metrics
        return f"http://{Address(found.host, found.port)}/metrics" if found is not None else ""

    async def stop(self) -> None:
        """Refuse new calls, let those under way end, roll, release, close. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        await self._health.enter_graceful_shutdown()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "subscriptions"):
            await self.subscriptions.stop()
        if hasattr(self, "engine"):
            self.engine.refuse_appends()
        await server.stop(self.settings.broker.drain_timeout_s)
        await self._close_rooms()
        if self._metrics is not None:
            self._metrics.stop()

    async def abandon(self) -> None:
        """End without a word, as a crash would: nothing is drained, rolled or released. Idempotent.

        For brokers whose start or whose disk has failed, and for tests.
        """
        server, self._server = self._server, None
        if server is None:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "engine"):
            # Before the streams end: what those would still write must not reach the journal.
            await self.engine.abandon()
        await server.stop(0)
        await self._close_stores()
        if self._metrics is not None:
            self._metrics.stop()

    async def _close_rooms(self) -> None:
        if hasattr(self, "engine"):
            await self.engine.stop()
        await self._close_stores()

    async def _close_stores(self) -> None:
        if hasattr(self, "_journal") and not hasattr(self, "engine"):
            # Opened, but not recovered: nobody else lets go of its lock.
            await asyncio.to_thread(self._journal.close)
        if hasattr(self, "_metadata"):
            with suppress(OSError):
                await self._metadata.close()


def _local_objects(root: Path) -> ObjectStore:
    return MeteredObjects(LocalObjects(root))


def _data_dir(settings: BrokerSettings) -> Path:
    if settings.broker.data_dir is None:
        raise InvalidSettings("the broker needs a data directory: --data-dir DIR")
    return settings.broker.data_dir


def _try_bind(address: Address) -> None:
    """Bind and let go: gRPC would tell a port in use in lines of its own on stderr."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address.host, address.port))


def _log_failure(error: BaseException) -> None:
    LOG.error("the journal has failed", error=str(error))
