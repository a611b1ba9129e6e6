"""``python -m reshift``."""

from reshift.cli.app import main

main()
