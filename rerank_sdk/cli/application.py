"""The application: its commands, and how every failure of one becomes a line of text and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rerank_engine.errors import RerankError
from rerank_sdk import __version__
from rerank_sdk.cli.bench import bench
from rerank_sdk.cli.compile import compile_model
from rerank_sdk.cli.convert import convert
from rerank_sdk.cli.demo import demo
from rerank_sdk.cli.doctor import doctor
from rerank_sdk.cli.events import events
from rerank_sdk.cli.features import features
from rerank_sdk.cli.inspect import inspect
from rerank_sdk.cli.output import show_error
from rerank_sdk.cli.replay import replay
from rerank_sdk.cli.run import run
from rerank_sdk.cli.store import store
from rerank_sdk.cli.train import train
from rerank_sdk.cli.triggers import triggers
from rerank_sdk.cli.tune import tune
from rerank_sdk.cli.verify import verify

DEBUG_VARIABLE = "RERANK_DEBUG"
"""Environment variable; ``1`` shows the traceback of an error."""


class ReportingGroup(TyperGroup):
    """A group whose commands end with one line on stderr and exit code 1 when something is wrong."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # whoever read the output has had enough; handled quietly above
        except (RerankError, OSError) as error:
            if os.environ.get(DEBUG_VARIABLE) == "1":
                sys.stderr.write("".join(traceback.format_exception(error)))
            show_error(str(error))
            raise typer.Exit(1) from None


# Plain help: it costs half the time of rich's, and has no escape codes to switch off.
app = typer.Typer(
    name="rerank",
    cls=ReportingGroup,
    help="Re-rank a feed on the device: try it, train and convert models, measure, and look inside.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def prepare(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Make every text printable: a console that lacks a character shows a question mark."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


app.command()(demo)
app.command()(train)
app.command()(convert)
app.command("compile")(compile_model)
app.command()(tune)
app.command()(verify)
app.command()(inspect)
app.command()(run)
app.command()(replay)
app.add_typer(features, name="features")
app.add_typer(events, name="events")
app.add_typer(triggers, name="triggers")
app.add_typer(store, name="store")
app.add_typer(bench, name="bench")
app.command()(doctor)
