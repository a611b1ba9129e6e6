"""The command line: one file per group of commands. May import everything; nothing imports it."""

from reshift.cli.app import main

__all__ = ["main"]
