"""The one ``megatune`` command: composed of what the tuner and the planner define, and what belongs to neither.

Exit codes: 0 done, 1 a fault of Megatune, 2 bad input, 3 nothing measured, no gain or nothing that can be said, 4 a
plan that has drifted, 130 interrupted.
"""

from __future__ import annotations

import errno
import sys
import traceback
from importlib.metadata import version
from typing import Annotated
from typing import Any

import typer
from typer.core import TyperGroup

from megatune_dashboard.bench import bench
from megatune_dashboard.database import database_app
from megatune_dashboard.doctor import doctor
from megatune_dashboard.interchange import app as interchange_app
from megatune_dashboard.quickstart import quickstart
from megatune_dashboard.repeating import repeat
from megatune_dashboard.serving import dashboard
from megatune_dashboard.verifying import verify
from megatune_db.errors import DatabaseError
from megatune_kernels.errors import MegatuneError
from megatune_planner.commands import app as planner_app
from megatune_tuner.commands import REPEAT
from megatune_tuner.commands import app as tuner_app
from megatune_tuner.transfer.commands import app as transfer_app

FAULT = 1
BAD_INPUT = 2
INTERRUPTED = 130


class _Commands(TyperGroup):
    """Turns what a command raises into one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (MegatuneError, DatabaseError) as error:
            _complain(f"megatune: {error}")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            _complain("megatune: interrupted; what was measured is kept")
            raise typer.Exit(INTERRUPTED) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                where = f" for {error.filename}" if error.filename else ""
                _complain(f"megatune: the disk is full: free some space{where} and run again")
                raise typer.Exit(BAD_INPUT) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                where = f"{error.filename} " if error.filename else ""
                _complain(
                    f"megatune: {where}cannot be used ({error.strerror}): name another place, or get the permission"
                )
                raise typer.Exit(BAD_INPUT) from error
            raise self._fault(ctx, error) from error
        except Exception as error:
            if type(error).__module__.startswith("typer"):  # usage errors and exits, which Typer handles
                raise
            raise self._fault(ctx, error) from error

    def _fault(self, ctx: Any, error: Exception) -> typer.Exit:
        if ctx.params.get("debug"):
            _complain("".join(traceback.format_exception(error)).rstrip())
        else:
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            _complain(
                f"megatune: a fault of the program ({what}); to report it, run the same again as "
                "`megatune --debug …` and send what it prints with that of `megatune doctor --json`"
            )
        return typer.Exit(FAULT)


def _complain(text: str) -> None:
    typer.echo(text, err=True)


app = typer.Typer(
    cls=_Commands,
    name="megatune",
    help="Tune the decode kernels of mixture-of-experts models, and turn the measurements into plans.",
    epilog="Example: megatune quickstart",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"megatune {version('megatune')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="MEGATUNE_DEBUG", help="Print the traceback of a fault.")
    ] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    del debug, show_version  # read from the context, and by the callback
    context.obj = {REPEAT: repeat}


app.command(epilog="Example: megatune quickstart --db tuned.db")(quickstart)
app.add_typer(tuner_app)
app.add_typer(transfer_app)
app.add_typer(planner_app)
app.add_typer(interchange_app)
app.command(epilog="Example: megatune verify plan.json --db tuned.db")(verify)
app.command(epilog="Example: megatune dashboard --db tuned.db")(dashboard)
app.command(epilog="Example: megatune bench planner --json")(bench)
app.command(epilog="Example: megatune doctor --json")(doctor)
app.add_typer(database_app, name="db")


def main() -> None:
    """The entry point of the command."""
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal without UTF-8 gets question marks instead of a fault.
        sys.stdout.reconfigure(errors="replace")
    app()
