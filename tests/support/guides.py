"""The pages of docs/guides as tests see them: commands to run and files to write."""

import re
import shlex
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>.+?) -->\n)?```bash\n(?P<lines>.*?)```", re.DOTALL)
SAVED = re.compile(r"Save this as `(?P<name>[\w.]+)`:\n\n```\w+\n(?P<text>.*?)```", re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The commands of a page, as a shell would split them; blocks that cannot run here say why."""
    blocks = [found["lines"] for found in BLOCK.finditer(page.read_text()) if not found["reason"]]
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line.strip()]


def save_files(page: Path) -> None:
    """Write what a page asks its reader to save into the current folder."""
    for found in SAVED.finditer(page.read_text()):
        Path(found["name"]).write_text(found["text"])
