"""The demo from beginning to end: who is started, killed, started again, compared and stopped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from danube.testing.brokers import BrokerProcess, free_port, is_running
from danube.testing.demo import expected, flights, late_desk
from danube.testing.demo.expected import Difference, Window
from danube.testing.demo.publisher import Publisher
from danube.testing.demo.query import Watch, spark_session, start_delays
from danube.testing.demo.screen import Screen

if TYPE_CHECKING:
    import pyarrow as pa

FLIGHTS_TOPIC: Final = "/demo/flights"
DELAYS_TOPIC: Final = "/demo/delays"
PARTITIONS: Final = 4
FLIGHTS_PER_STEP: Final = 1_000
PUBLISH_S: Final = 45.0
DOWN_S: Final = 1.0
CONSUMERS: Final = ("desk-1", "desk-2")
TICK_S: Final = 0.2
LOOK_EVERY_S: Final = 1.0
GIVE_UP_S: Final = 300.0
"""A step of the demo that takes so long is stuck; all of it takes less than three minutes."""


@dataclass
class Outcome:
    """What the summary tells."""

    seconds: float = 0.0
    published: int = 0
    publish_busy_s: float = 0.0
    longest_step_s: float = 0.0
    rows_in: int = 0
    query_busy_s: float = 0.0
    batches: int = 0
    dropped: int = 0
    windows: int = 0
    late: int = 0
    doubles: int = 0
    events: list[tuple[float, str]] = field(default_factory=list)
    lags: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    checks: list[tuple[str, bool, str]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether everything is as it must be."""
        return bool(self.checks) and all(passed for _, passed, _ in self.checks)


class Demo:
    """One run in one work directory.

    Args:
        work_dir: data, logs and results; emptied first.
        keep: leave the broker running at the end.
    """

    def __init__(self, work_dir: Path, *, keep: bool) -> None:
        self.work_dir = work_dir.absolute()
        self.keep = keep
        self.outcome = Outcome()
        self.broker: BrokerProcess
        self._screen: Screen
        self._publisher: Publisher
        self._watch: Watch
        self._desks: list[subprocess.Popen[bytes]] = []
        self._client: Any
        self._looked_s = 0.0
        self._windows_expected = 0

    def run(self) -> Outcome:
        """Run all of it. Whatever happens, nothing stays running but a broker that is kept."""
        self._prepare()
        year = flights.load()
        windows = expected.windows(year)
        self._windows_expected = len(windows)
        totals = {
            "flights published": flights.FLIGHTS,
            "rows read by Spark": flights.FLIGHTS,
            "windows closed": len(windows),
            "late flights handled": flights.LATE_FLIGHTS,
        }
        with Screen(totals) as self._screen, ExitStack() as stack:
            self._event(f"{len(year):,} flights of 2013 read from the package and sorted by time")
            self._start_broker(stack)
            self._start_consumers(stack)
            self._start_query(stack)
            self._publish(stack, year)
            self._wait("the query to read every flight", self._all_read)
            self._publisher.close_windows()
            self._event("closing events published: no window stays open")
            self._wait("windows and late flights", self._all_done)
            self._stop_working()
            self._compare(year, windows)
        self.outcome.seconds = self._screen.seconds
        return self.outcome

    # --- starting -------------------------------------------------------------------------------

    def _prepare(self) -> None:
        pid_file = self.work_dir / "broker.pid"
        if pid_file.exists() and is_running(pid := int(pid_file.read_text())):
            raise SystemExit(
                f"the broker of an earlier `make demo KEEP=1` still runs; stop it first: kill {pid}"
            )
        shutil.rmtree(self.work_dir, ignore_errors=True)
        self.work_dir.mkdir(parents=True)

    def _start_broker(self, stack: ExitStack) -> None:
        import danube

        self.broker = BrokerProcess(
            self.work_dir / "data", free_port(), self.work_dir / "broker.log"
        )
        took_s = self.broker.start()
        stack.callback(self._end_broker)
        self._event(f"broker ready on {self.broker.url} after {took_s:.1f} s")
        self._client = stack.enter_context(danube.blocking.connect(self.broker.url))
        for topic in (FLIGHTS_TOPIC, DELAYS_TOPIC):
            self._client.admin.create_topic(topic, partitions=PARTITIONS)

    def _end_broker(self) -> None:
        if self.keep and self.outcome.passed:
            pid = self.broker.leave_running()
            (self.work_dir / "broker.pid").write_text(str(pid))
        else:
            self.broker.stop()

    def _start_consumers(self, stack: ExitStack) -> None:
        for name in CONSUMERS:
            command = [sys.executable, "-m", late_desk.__name__, self.broker.url, FLIGHTS_TOPIC]
            with (self.work_dir / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    [*command, name, str(self._result_path(name))],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._desks.append(process)
            stack.callback(_stop, process)
        self._event(f"{len(CONSUMERS)} consumers share the subscription {late_desk.SUBSCRIPTION}")

    def _start_query(self, stack: ExitStack) -> None:
        from danube.testing.java import ensure_java

        self._event("starting Spark …")
        os.environ.update(ensure_java())
        # Whatever `python3` is on PATH: Spark's workers need this one's packages.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = spark_session(self.work_dir)
        stack.callback(_stop_spark, spark)
        checkpoint = self.work_dir / "checkpoint"
        query = start_delays(spark, self.broker.url, FLIGHTS_TOPIC, DELAYS_TOPIC, checkpoint)
        stack.callback(query.stop)
        self._watch = Watch(query)
        stack.callback(self._watch.stop)
        self._event("the streaming query runs")

    def _publish(self, stack: ExitStack, year: pa.Table) -> None:
        self._publisher = Publisher(
            self.broker.url,
            FLIGHTS_TOPIC,
            PARTITIONS,
            flights.steps(year, FLIGHTS_PER_STEP),
            total=len(year),
            duration_s=PUBLISH_S,
        )
        stack.callback(self._publisher.stop)
        self._publisher.start()
        self._event(f"publishing, about {flights.FLIGHTS / PUBLISH_S:,.0f} flights a second")
        self._wait("half of the flights", lambda: self._publisher.published > flights.FLIGHTS / 2)
        pid = self.broker.kill()
        self._event(f"broker (process {pid}) killed with SIGKILL", "bold red")
        self.outcome.events.append((self._screen.seconds, f"SIGKILL of broker process {pid}"))
        time.sleep(DOWN_S)
        took_s = self.broker.start()
        text = f"broker started again on the same data, ready after {took_s:.1f} s"
        self._event(text, "bold green")
        self.outcome.events.append((self._screen.seconds, text))

    # --- watching -------------------------------------------------------------------------------

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + GIVE_UP_S
        while not done():
            self._check()
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"waited {GIVE_UP_S:.0f} s for {what}; see {self.work_dir}")
            time.sleep(TICK_S)
            self._refresh()

    def _check(self) -> None:
        self._publisher.check()
        self._watch.check()
        for process in self._desks:
            if process.poll() is not None:
                raise RuntimeError(f"a consumer ended too early; see the logs in {self.work_dir}")

    def _refresh(self) -> None:
        totals, publisher = self._watch.totals, self._publisher
        self._screen.show("flights published", publisher.published, f"until {publisher.until[:10]}")
        rows = min(totals.rows_in, flights.FLIGHTS)
        self._screen.show("rows read by Spark", rows, f"batch {totals.batches}")
        if time.monotonic() - self._looked_s > LOOK_EVERY_S:
            self._look()
            self._looked_s = time.monotonic()
        self._screen.tick()

    def _look(self) -> None:
        """Ask the broker and the consumers' files how far they are."""
        described = self._client.admin.describe_topic(DELAYS_TOPIC)
        self.outcome.windows = sum(
            view.durable_offset - sum(len(lost) for lost in view.lost)
            for view in described.partitions
        )
        self._screen.show("windows closed", self.outcome.windows, self._watch.totals.watermark[:10])
        late, doubles = late_desk.results(self._results())
        self.outcome.late, self.outcome.doubles = len(late), doubles
        self._screen.show("late flights handled", len(late), f"lag {self._lag():,}")

    def _lag(self) -> int:
        for info in self._client.admin.list_subscriptions(FLIGHTS_TOPIC):
            if info.name == late_desk.SUBSCRIPTION:
                return int(info.lag_messages)
        return flights.FLIGHTS

    def _all_read(self) -> bool:
        return self._publisher.finished and self._watch.totals.rows_in >= flights.FLIGHTS

    def _all_done(self) -> bool:
        enough = self.outcome.windows >= self._windows_expected
        return enough and self.outcome.late >= flights.LATE_FLIGHTS and self._lag() == 0

    # --- finishing ------------------------------------------------------------------------------

    def _stop_working(self) -> None:
        self._refresh()
        self._note_lags()
        self._watch.query.stop()
        self._watch.stop()
        self._watch.collect()
        for process in self._desks:
            _stop(process)
        self._event("query and consumers are done; comparing with pandas")

    def _note_lags(self) -> None:
        for info in self._client.admin.list_subscriptions(FLIGHTS_TOPIC):
            seconds = max((each.lag_seconds for each in info.partitions), default=0.0)
            lag = {"subscription": info.name, "type": info.kind, "messages": info.lag_messages}
            self.outcome.lags.append({**lag, "seconds": seconds})

    def _compare(self, year: pa.Table, windows: list[Window]) -> None:
        outcome, totals = self.outcome, self._watch.totals
        outcome.published = self._publisher.published
        outcome.publish_busy_s = self._publisher.busy_s
        outcome.longest_step_s = self._publisher.longest_step_s
        outcome.rows_in, outcome.batches = totals.rows_in, totals.batches
        outcome.query_busy_s, outcome.dropped = totals.busy_s, totals.dropped
        self._add("no row dropped by the watermark", totals.dropped == 0, f"{totals.dropped}")
        found = [expected.window_of(event) for event in self._events(DELAYS_TOPIC)]
        self._add_difference(f"{len(windows):,} windows equal pandas", windows, found)
        late, outcome.doubles = late_desk.results(self._results())
        self._add_difference(
            f"{flights.LATE_FLIGHTS:,} late flights equal pandas", expected.late_flights(year), late
        )
        for topic in (FLIGHTS_TOPIC, DELAYS_TOPIC):
            self._verify(topic)
            outcome.tables[topic] = self._client.admin.describe_topic(topic).table_uri

    def _events(self, topic: str) -> list[dict[str, Any]]:
        with self._client.reader(topic, skip_lost=True) as reader:
            return [json.loads(value) for batch in reader for value in batch.values]

    def _verify(self, topic: str) -> None:
        url = ["--service-url", self.broker.url, "--output", "json"]
        command = [sys.executable, "-m", "danube.cli.main", "verify", topic, *url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        note = ""
        if done.returncode != 0:
            note = (done.stdout + done.stderr).strip()[-500:]
        self._add(f"danube verify {topic}", done.returncode == 0, note)

    def _add_difference(self, name: str, want: list[Any], have: list[Any]) -> None:
        difference: Difference = expected.compare(want, have)
        note = (
            ""
            if not difference
            else (
                f"{difference.missing:,} missing, {difference.surplus:,} surplus; "
                + "; ".join(difference.examples)
            )
        )
        self._add(name, not difference, note)

    def _add(self, name: str, passed: bool, note: str) -> None:
        self.outcome.checks.append((name, passed, note if not passed else ""))
        self._event(f"{'✓' if passed else '✗'} {name}", "green" if passed else "bold red")

    # --- small things ---------------------------------------------------------------------------

    def _event(self, text: str, style: str = "") -> None:
        self._screen.event(text, style)

    def _result_path(self, name: str) -> Path:
        return self.work_dir / f"{name}.jsonl"

    def _results(self) -> list[Path]:
        paths = [self._result_path(name) for name in CONSUMERS]
        return [path for path in paths if path.exists()]


def _stop(process: subprocess.Popen[bytes], timeout_s: float = 20.0) -> None:
    """Ask a process to end; make it end when it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _stop_spark(spark: Any) -> None:
    """Stop Spark and its JVM, which otherwise lives as long as this process."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    process.wait(30)
