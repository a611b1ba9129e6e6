"""``python -m reshift``."""

from reshift.cli import main

main()
