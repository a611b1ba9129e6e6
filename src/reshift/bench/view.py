"""Show a running benchmark: a live panel on a terminal, plain lines in a log. An error here never stops the run."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reshift.bench.cells import Event

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_SHOWN = 8  # running cells, and failures, in the panel


@dataclass
class State:
    """The events so far: counts, times, errors and the best results."""

    total: int
    datasets: Sequence[str] = ()
    clock: Callable[[], float] = time.monotonic
    running: dict[str, float] = field(default_factory=dict)  # cell → when it began
    ended: dict[str, int] = field(default_factory=lambda: {"done": 0, "failed": 0, "cached": 0})
    seconds: list[float] = field(default_factory=list)  # of cells that were computed
    errors: list[str] = field(default_factory=list)
    best: dict[str, tuple[float, str]] = field(default_factory=dict)  # dataset → its best cell

    def add(self, event: Event) -> None:
        """Count one event."""
        if event.kind == "started":
            self.running[event.cell] = self.clock()
            return
        self.running.pop(event.cell, None)
        self.ended[event.kind] += 1
        if event.kind == "failed":
            self.errors.append(f"{event.cell}: {event.detail}")
            return
        if event.kind == "done":
            self.seconds.append(event.seconds)
        name = self.dataset(event.cell)
        if event.rank is not None and (name not in self.best or event.rank > self.best[name][0]):
            self.best[name] = (event.rank, f"{event.cell}: {event.detail}")

    def dataset(self, cell: str) -> str:
        """The data set at the start of a cell's name; names may contain dashes, so the known names are tried first."""
        known = [name for name in self.datasets if cell == name or cell.startswith(f"{name}-")]
        return max(known, key=len, default=cell.partition("-")[0])

    @property
    def finished(self) -> int:
        """Number of cells that need no more work."""
        return sum(self.ended.values())

    def eta(self) -> float | None:
        """Seconds left: the mean time of finished cells for each cell left, divided by the number that run at once."""
        if not self.seconds:
            return None
        mean, now = sum(self.seconds) / len(self.seconds), self.clock()
        queued = max(0, self.total - self.finished - len(self.running))
        begun = sum(max(0.0, mean - (now - since)) for since in self.running.values())
        return (queued * mean + begun) / max(1, len(self.running))

    def line(self) -> str:
        """All counts in one line."""
        counts = ", ".join(f"{n} {kind}" for kind, n in (*self.ended.items(), ("running", len(self.running))) if n)
        left = self.eta()
        ahead = f", about {duration(left)} left" if left is not None and self.finished < self.total else ""
        return f"{self.finished}/{self.total} cells: {counts or 'none yet'}{ahead}"


def duration(seconds: float) -> str:
    """A duration as short text: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def live(total: int, datasets: Sequence[str] = ()) -> Iterator[Callable[[Event], None]]:
    """``with live(120) as report: report(Event("done", …))``. It writes to stderr; any thread may report."""
    state, lock = State(total, datasets), threading.Lock()
    panel = _panel(state, lock) if sys.stderr.isatty() else None

    def report(event: Event) -> None:
        with lock, suppress(Exception):  # a closed pipe or an unknown event must not stop a benchmark
            state.add(event)
            if panel is None:  # a panel redraws itself
                _print(state, event)

    try:
        yield report
    finally:
        with suppress(Exception):
            if panel is not None:
                panel.stop()
        with suppress(Exception):
            for text in (state.line(), *(f"failed: {error}" for error in state.errors)):
                print(text, file=sys.stderr, flush=True)


def _print(state: State, event: Event) -> None:
    if event.kind == "cached":
        return  # a resumed benchmark has hundreds of them; the last line has their number
    took = f" in {duration(event.seconds)}" if event.kind != "started" else ""
    detail = f": {event.detail}" if event.detail else ""
    print(f"{event.kind} {event.cell}{took}{detail} [{state.line()}]", file=sys.stderr, flush=True)


def _panel(state: State, lock: threading.Lock) -> Any:
    """Start the live panel; None where rich cannot draw one."""
    try:
        from rich.console import Console
        from rich.live import Live

        class SilentConsole(Console):
            """A console that stops writing when its terminal is closed; rich's own would end the process."""

            def on_broken_pipe(self) -> None:
                """Stop writing."""
                self.quiet = True

        def draw() -> "RenderableType":
            with lock:
                return panel_content(state)

        options: dict[str, Any] = {"refresh_per_second": 2, "transient": True, "redirect_stdout": False}  # stdout has the results
        panel = Live(get_renderable=draw, console=SilentConsole(stderr=True), **options)
        panel.start()
    except Exception:
        return None
    return panel


def panel_content(state: State) -> "RenderableType":
    """The panel: a bar, running cells, the best result of each data set, failures."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    bar = Padding(ProgressBar(state.total, state.finished), 0)  # a bar alone does not end its line
    parts: list[RenderableType] = [Text(state.line(), style="bold"), bar]
    now = state.clock()
    for cell, since in list(state.running.items())[:MAX_SHOWN]:
        parts.append(Text(f"  running {cell}, {duration(now - since)}"))
    parts += [Text(f"  best so far on {name}: {text}") for name, (_, text) in sorted(state.best.items())]
    parts += [Text(f"  failed {error}", style="red", overflow="ellipsis", no_wrap=True) for error in state.errors[-MAX_SHOWN:]]
    return Group(*parts)
