"""The root group: turns errors into one clear sentence on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from danube.cli.exits import Exit, exit_code
from danube.core.errors import DanubeError


class DanubeGroup(TyperGroup):
    """Commands under it raise core errors; nobody but a developer sees a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except DanubeError as error:
            sys.stderr.write(f"danube: {sentence(error)}\n")
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read stdout has had enough (`danube read … | head`). The interpreter's own
            # flush at exit must not complain about it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(Exit.OK) from None


def sentence(error: DanubeError) -> str:
    """The error's message, or its kind where it has none."""
    return str(error) or type(error).__name__
