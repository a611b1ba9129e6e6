"""``reshift completion``: a script that lets a shell complete commands and options."""

import os
from importlib import import_module
from typing import Annotated, Any

import typer

from reshift.errors import UserError

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_RESHIFT_COMPLETE"  # set by the script when it asks for words


def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="the shell")]) -> None:
    """Print a completion script: add eval "$(reshift completion bash)" to ~/.bashrc."""
    if shell not in SHELLS:
        raise UserError(f"shell '{shell}' is not known; use {', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
    script = _typer_completion().get_completion_script(prog_name="reshift", complete_var=VARIABLE, shell=shell)  # nosec B604
    typer.echo(script)


def answer_shells() -> None:
    """Let the command line answer a completion script; costs nothing where none asks."""
    if VARIABLE in os.environ:
        _typer_completion().completion_init()


def _typer_completion() -> Any:
    """Typer's own scripts; its type hints do not export them."""
    return import_module("typer.completion")
