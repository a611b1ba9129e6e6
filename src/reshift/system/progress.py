"""Show progress with the time left: a bar on a terminal, a plain line every few seconds in a log."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from reshift.errors import printable

if TYPE_CHECKING:
    from rich.progress import Task

LINE_SECONDS = 15.0  # between two lines in a log
SPEED_SECONDS = 600.0  # the speed is measured over this time, and over at most 1000 steps

Item = TypeVar("Item")


class Advance(Protocol):
    """What ``progress`` yields."""

    def __call__(self, amount: int = 1, text: str = "") -> None:
        """Add ``amount`` finished steps and show ``text`` beside the bar."""


_active: list[Advance] = []  # the innermost bar comes last
_silent: list[bool] = []  # not empty: this process shows nothing


def silence() -> None:
    """Show no progress in this process: nobody looks at a server's worker."""
    _silent.append(True)


@contextmanager
def progress(label: str, total: int, start: int = 0, *, quiet: bool = False) -> Iterator[Advance]:
    """``with progress("scoring", 100) as advance: …; advance()``. It writes to stderr, because stdout is for results.

    Inside another bar it shows nothing of its own.
    """
    if quiet or _silent or total <= start or _active:
        yield _show_nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    label_column, text_column = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[text]"))
    columns = (label_column, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), text_column)
    terminal, printed = sys.stderr.isatty(), time.monotonic()
    bar = Progress(*columns, console=Console(stderr=True), get_time=time.monotonic, speed_estimate_period=SPEED_SECONDS)
    task = bar.add_task(label, total=total, completed=start, text="")

    def advance(amount: int = 1, text: str = "") -> None:
        nonlocal printed
        fields: dict[str, Any] = {"text": printable(text)} if text else {}  # it names a file
        bar.update(task, advance=amount, **fields)
        if not terminal and (bar.finished or time.monotonic() - printed >= LINE_SECONDS):
            print(_line(bar.tasks[0]), file=sys.stderr, flush=True)
            printed = time.monotonic()

    with bar if terminal else nullcontext():
        _active.append(advance)
        try:
            yield advance
        finally:
            _active.remove(advance)


def _show_nothing(amount: int = 1, text: str = "") -> None:
    """Stand in for a bar that is not shown."""


def counted(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Yield ``items`` and show their number beside the active bar, if there is one: for the many steps of one image."""
    for i, item in enumerate(items, start=1):
        yield item
        if _active:
            _active[-1](0, f"{label} {i}/{len(items)}")


def _line(task: "Task") -> str:
    left = task.time_remaining
    parts = [f"{task.description}: {task.completed:.0f}/{task.total:.0f}", "" if left is None else f"{left:.0f} s left"]
    return ", ".join(part for part in (*parts, task.fields["text"]) if part)
