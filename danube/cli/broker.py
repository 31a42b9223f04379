"""``danube broker``: run a broker in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli.options import SERVICE_URL_VARIABLE, Output, key_values
from danube.cli.output import OutputFormat, plain, print_json

if TYPE_CHECKING:
    from danube.broker.settings import BrokerSettings
    from danube.core.settings import Loaded


def broker(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where journal, metadata and tables are kept; made when absent."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Client port (default 127.0.0.1:6650).")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Allow a listen address that others can reach; nothing is encrypted."
        ),
    ] = False,
    metrics_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Prometheus port; port 0: any free one, '': none."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="text|json", help="Events for people or for programs.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A TOML file; conf/ has one explained.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting, for example --set journal.segment_bytes=67108864.",
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting and its origin, and end.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Settings come from the file, are overridden by the environment (DANUBE_<SECTION>__<KEY>), and
    those by flags. Both kill -9 at any moment and a restart on the same directory are fine.
    """
    flags = key_values(set_ or [], "a setting")
    named = {
        "broker.data_dir": None if data_dir is None else str(data_dir),
        "broker.listen": listen,
        "broker.insecure": "true" if insecure else None,
        "broker.metrics_listen": metrics_listen,
        "broker.log_format": log_format,
    }
    flags |= {key: value for key, value in named.items() if value is not None}
    loaded = _load(config, flags)
    if print_config:
        _print_config(loaded, output)
        return
    raise typer.Exit(_run(loaded))


def _run(loaded: Loaded[BrokerSettings]) -> int:
    from danube.core.errors import Unsupported

    try:
        from danube.broker.main import run
    except ModuleNotFoundError as error:
        if (error.name or "danube").partition(".")[0] == "danube":
            raise
        raise Unsupported(
            f"{error.name} is not installed; a broker needs: pip install 'danube-spark[broker]'"
        ) from error
    return run(loaded)


def settings_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without the variable that names a broker to clients: no setting of a broker."""
    return {name: value for name, value in environ.items() if name != SERVICE_URL_VARIABLE}


def _load(config: Path | None, flags: Mapping[str, str]) -> Loaded[BrokerSettings]:
    from danube.broker.settings import BrokerSettings
    from danube.core.settings import load

    return load(BrokerSettings, config, settings_environment(os.environ), flags)


def _print_config(loaded: Loaded[BrokerSettings], output: OutputFormat) -> None:
    if output is OutputFormat.TABLE:
        from danube.core.settings_file import effective

        sys.stdout.write(effective(loaded))
        return
    for item in loaded.options:
        value = plain(item.value)
        print_json({"key": item.key, "value": value, "origin": item.origin, "help": item.help})
