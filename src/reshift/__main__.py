"""``python -m reshift``."""

import os
import sys

if sys.path[0] in ("", os.getcwd()):  # noqa: PTH109 (pathlib would be imported from there)
    del sys.path[0]  # put there by "python -m": a numpy.py in the current folder must not be imported

from reshift.cli.app import main

main()
