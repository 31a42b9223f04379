"""Write ``conf/broker.toml``: every setting of a broker with its help and default.

python -m scripts.write_configuration
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from danube.broker.settings import BrokerSettings
from danube.core.settings_file import example

TARGET: Final = Path(__file__).resolve().parent.parent / "conf" / "broker.toml"
HEADER: Final = """\
Configuration of `danube broker`. Every line is optional; what is commented out is the default.

A variable DANUBE_<SECTION>__<KEY> overrides the line of a file, and a flag overrides both:
`danube broker --print-config` shows what is in effect and where each value came from. Unknown \
keys are refused, with the nearest one that exists. Every number has its unit at the end of its \
name. Lists are ["a", "b"] here, and also a,b in variables and flags.

Written by `make conf` from the typed settings; a test compares the two."""


def configuration() -> str:
    """Return the text of the example configuration."""
    return example(BrokerSettings, HEADER)


def main() -> None:
    """Write the example configuration to its place."""
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(configuration(), encoding="utf-8")


if __name__ == "__main__":
    main()
