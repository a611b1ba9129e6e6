"""Progress with an ETA: a bar on a terminal, a plain line now and then in a log."""

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

LINE_SECONDS = 15.0  # between lines when nobody watches
LINES = 5  # over which the pace is taken: over one alone it jumps


class Advance(Protocol):
    """Call it with how much was done, and a short text to show beside the bar."""

    def __call__(self, amount: int = 1, text: str = "") -> None:
        """Move on."""


@contextmanager
def progress(label: str, total: int, start: int = 0, *, quiet: bool = False) -> Iterator[Advance]:
    """``with progress("scoring", 100) as advance: …; advance()``. Everything goes to stderr: stdout is for results."""
    if quiet or total <= start:
        yield _nothing
    elif sys.stderr.isatty():
        with _bar(label, total, start) as advance, _watched(advance):
            yield advance
    else:
        with _watched(advance := _lines(label, total, start)):
            yield advance


Item = TypeVar("Item")


def counted(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Yield ``items`` and show how far one got beside the bar that is up, if any: for the many steps of a single image."""
    for i, item in enumerate(items, start=1):
        yield item
        if _shown:
            _shown[-1](0, f"{label} {i}/{len(items)}")


_shown: list[Advance] = []  # bars that are up, the innermost last


@contextmanager
def _watched(advance: Advance) -> Iterator[None]:
    _shown.append(advance)
    try:
        yield
    finally:
        _shown.remove(advance)


def _nothing(amount: int = 1, text: str = "") -> None:
    """Show no progress."""


@contextmanager
def _bar(label: str, total: int, start: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, completed=start, text="")

        def advance(amount: int = 1, text: str = "") -> None:
            bar.update(task, advance=amount)
            if text:
                bar.update(task, text=text)

        yield advance


def _lines(label: str, total: int, start: int) -> Advance:
    """What is left is judged by the pace over the last lines, and never by the first step, which often has to warm up."""
    printed, done, marks = time.monotonic(), start, deque[tuple[float, int]](maxlen=LINES)

    def advance(amount: int = 1, text: str = "") -> None:
        nonlocal printed, done
        done += amount
        now = time.monotonic()
        if amount and not marks:
            marks.append((now, done))
        if done < total and now - printed < LINE_SECONDS:
            return
        parts = [f"{label}: {done}/{total}"]
        if marks and (done > marks[0][1] or done == total):
            left = (now - marks[0][0]) / max(1, done - marks[0][1]) * (total - done)
            parts.append(f"{left:.0f} s left")
            marks.append((now, done))
        printed = now
        print(", ".join([*parts, text] if text else parts), file=sys.stderr, flush=True)

    return advance
