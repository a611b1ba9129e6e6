"""The view of a running benchmark: counts, time left, plain lines in a log; it never stops a run."""

import io
import sys
import threading

import pytest

from reshift.bench.cells import Event
from reshift.bench.view import State, duration, live, panel_content


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Closed(Terminal):
    """A terminal that has been closed."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def test_counts_and_best_of_each_dataset() -> None:
    state = State(6, ["ixi", "ixi-atlas", "busi"])
    for event in (
        Event("cached", "busi-dae-0", detail="AUC 0.700, AP 0.2", rank=0.7),
        Event("started", "busi-ae-0"),
        Event("done", "busi-ae-0", 4.0, "AUC 0.600", 0.6),
        Event("started", "ixi-atlas-thor-simplex-0"),
        Event("done", "ixi-atlas-thor-simplex-0", 6.0, "AUC 0.900", 0.9),
        Event("started", "ixi-ae-0"),
        Event("failed", "ixi-ae-0", 1.0, "out of memory at step 17"),
        Event("started", "ixi-ae-1"),
    ):
        state.add(event)
    assert state.ended == {"done": 2, "failed": 1, "cached": 1}
    assert list(state.running) == ["ixi-ae-1"]
    assert {name: value for name, (value, _) in state.best.items()} == {"busi": 0.7, "ixi-atlas": 0.9}
    assert state.errors == ["ixi-ae-0: out of memory at step 17"]
    assert state.line().startswith("4/6 cells: 2 done, 1 failed, 1 cached, 1 running, about ")


def test_time_left_comes_from_finished_cells_and_the_number_running() -> None:
    clock = Clock()
    state = State(10, clock=clock)
    assert state.eta() is None
    state.add(Event("cached", "a-0"))
    assert state.eta() is None  # a cached cell says nothing about time
    state.add(Event("started", "a-1"))
    clock.now = 10.0
    state.add(Event("done", "a-1", 10.0))
    state.add(Event("started", "a-2"))
    state.add(Event("started", "a-3"))
    clock.now = 14.0  # 6 seconds left of each, and 6 cells of 10 seconds waiting, two at a time
    assert state.eta() == pytest.approx((6 * 10 + 2 * 6) / 2)
    clock.now = 100.0  # longer than expected: no negative time
    assert state.eta() == pytest.approx(30.0)


def test_durations_as_text() -> None:
    assert [duration(s) for s in (5, 89, 600, 9000)] == ["5 s", "89 s", "10 min", "2.5 h"]


def test_plain_lines_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with live(3) as report:
        report(Event("cached", "a-0"))
        report(Event("started", "a-1"))
        report(Event("done", "a-1", 2.0, "AUC 0.900"))
        report(Event("failed", "a-2", 1.0, "no such file"))
    out, err = capsys.readouterr()
    assert out == ""  # stdout is for results
    lines = err.splitlines()
    assert lines[0].startswith("started a-1 [1/3 cells: 1 cached, 1 running")
    assert lines[1].startswith("done a-1 in 2 s: AUC 0.900 [2/3 cells")
    assert lines[-2:] == ["3/3 cells: 1 done, 1 failed, 1 cached", "failed: a-2: no such file"]


def test_a_panel_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with live(2, ["busi"]) as report:
        report(Event("started", "busi-[red]-0"))
        report(Event("done", "busi-[red]-0", 2.0, "AUC 0.900", 0.9))
    shown = screen.getvalue()
    assert "best so far on busi: busi-[red]-0: AUC 0.900" in shown  # a name is not markup
    assert shown.rstrip().endswith("1/2 cells: 1 done, about 2 s left")


def test_the_panel_lists_running_and_failed_cells() -> None:
    from rich.console import Console

    state = State(4)
    state.add(Event("started", "busi-dae-0"))
    state.add(Event("failed", "busi-ae-0", 1.0, "a reason"))
    console = Console(file=io.StringIO(), width=100)
    console.print(panel_content(state))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "running busi-dae-0" in text
    assert "failed busi-ae-0: a reason" in text


def test_a_broken_terminal_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Closed())
    done = []
    with live(2) as report:
        for i in range(2):
            report(Event("done", f"a-{i}", 1.0))
            done.append(i)
        report(Event("exploded", "a-3"))  # type: ignore[arg-type]
    assert done == [0, 1]


def test_an_error_of_the_run_is_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        with live(2) as report:
            report(Event("done", "a-0", 1.0))
            raise ValueError("real")

    with pytest.raises(ValueError, match="real"):
        work()
    assert "1/2 cells: 1 done" in capsys.readouterr().err


def test_reports_from_many_threads(capsys: pytest.CaptureFixture[str]) -> None:
    with live(200) as report:

        def work(name: str) -> None:
            for k in range(20):
                report(Event("done", f"{name}-{k}", 1.0))

        threads = [threading.Thread(target=work, args=(f"a-{i}",)) for i in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert capsys.readouterr().err.splitlines()[-1] == "200/200 cells: 200 done"
