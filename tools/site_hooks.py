"""Hooks of the site's builder: links to files outside docs/ become their names, which readers of the repository can open."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:src|examples|results|benchmarks|README|CONTRIBUTING|SECURITY)[^)]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """``[text](../src/x.py)`` → ``text (`src/x.py`)``, or the name alone where it is the text."""
    return OUTSIDE.sub(lambda found: _named(found[1], found[2]), markdown)


def _named(text: str, path: str) -> str:
    return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"
