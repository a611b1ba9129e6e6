"""The command line: one file per group of commands. May import everything; nothing imports it.

Modules of ours are imported inside the commands, so that ``reshift --help`` starts without torch.
"""

from reshift.cli.app import main

__all__ = ["main"]
