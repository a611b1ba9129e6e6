"""The program ``reshift``: its list of commands, and how errors and Ctrl-C end it.

Commands import what they need when they run, so that ``reshift --help`` imports no torch.
"""

import signal
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

from reshift import __version__
from reshift.cli.bench import bench
from reshift.cli.cache import cache
from reshift.cli.completion import answer_shells, completion
from reshift.cli.data import check, datasets, prepare
from reshift.cli.demo import demo
from reshift.cli.doctor import doctor
from reshift.cli.evaluate import compare, evaluate, figures, select
from reshift.cli.exchange import pull, push, schema
from reshift.cli.export import export
from reshift.cli.info import info, methods
from reshift.cli.pacs import pacs
from reshift.cli.score import score
from reshift.cli.serve import serve
from reshift.cli.shared import INTERRUPTED, cleanup, shown
from reshift.cli.train import calibrate, train
from reshift.cli.weights import weights
from reshift.errors import Stopped, UserError, printable
from reshift.system.signals import ending_signals

app = typer.Typer(
    name="reshift",
    help="Detect and localise disease in medical images after training on healthy images only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train and score": (demo, train, calibrate, score),
    "Serve": (serve,),
    "Evaluate": (evaluate, compare, select, figures, bench),
    "Data": (check, prepare, datasets),
    "Share": (export, push, pull),
    "Information": (info, methods, schema, doctor, completion),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(pacs, rich_help_panel="Train and score")
app.add_typer(weights, rich_help_panel="Information")
app.add_typer(cache, rich_help_panel="Information")

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer exports only this subclass of it


@app.callback(invoke_without_command=True)
def _root(
    _debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,  # main reads it
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
) -> None:
    if version:
        typer.echo(f"reshift {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command. A user's mistake is one line and exit code 2; Ctrl-C is one line and exit code 130."""
    for number in ending_signals():
        signal.signal(number, _interrupt)
    warnings.filterwarnings("ignore", module="PIL")  # about metadata; only the pixels are used
    answer_shells()
    args = sys.argv[1:] or ["--help"]
    debug = "--debug" in args
    try:
        with cleanup:
            code = app(sorted(args, key="--debug".__ne__), standalone_mode=False)  # --debug may stand anywhere
    except (UserError, OSError, _UsageError) as err:
        if debug:
            raise
        print(f"reshift: {shown(_error_line(err))}", file=sys.stderr)
        raise SystemExit(INTERRUPTED if isinstance(err, Stopped) else 2) from None
    except typer.Abort:
        code = INTERRUPTED
    if code == INTERRUPTED:
        print("reshift: stopped; finished work is kept, the same command (train: with --resume) continues", file=sys.stderr)
    raise SystemExit(code)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _error_line(err: Exception) -> str:
    if isinstance(err, OSError):
        return printable(f"{err.filename}: {err.strerror}" if err.filename else str(err))
    if isinstance(err, UserError):
        return str(err)
    usage: Any = err
    return f"{usage.format_message().rstrip('.')} (see '{usage.ctx.command_path if usage.ctx else 'reshift'} --help')"
