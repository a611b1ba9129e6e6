"""The help of every command is complete."""

from typing import Any

import pytest
import typer.main
from helpers import Cli

from reshift.cli.app import COMMANDS, app

NAMES = [command.__name__ for commands in COMMANDS.values() for command in commands]


def test_help_lists_every_command(run_cli: Cli) -> None:
    shown = run_cli("--help")
    assert shown.code == 0
    assert all(f" {name} " in shown.out for name in NAMES)
    assert run_cli().out == shown.out


@pytest.mark.parametrize("name", NAMES)
def test_every_option_and_argument_has_a_help_text(run_cli: Cli, name: str) -> None:
    group: Any = typer.main.get_command(app)
    assert all(parameter.help for parameter in group.commands[name].params)
    shown = run_cli(name, "-h")
    assert shown.code == 0
    assert f"reshift {name}" in shown.out
