"""Progress in a log: few lines, with a time left that can be believed. Progress on a terminal: a bar."""

import re
import sys
import time
from collections.abc import Callable

import pytest

from reshift.system.progress import LINE_SECONDS, counted, progress

Lines = Callable[[list[float], int], list[str]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lines:
    """The lines that are printed if steps end at these times."""

    def shown(times: list[float], total: int) -> list[str]:
        now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        with progress("training", total) as advance:
            for now in times:  # noqa: B007 (the clock reads it)
                advance(1, "loss 1")
        return capsys.readouterr().err.splitlines()

    return shown


def test_a_line_every_few_seconds_and_one_at_the_end(lines: Lines) -> None:
    assert lines([1.0, 2.0, 3.0], 3) == ["training: 3/3, 0 s left, loss 1"]
    assert len(lines([LINE_SECONDS * i / 3 for i in range(1, 7)], 7)) == 2


def test_the_first_step_is_not_used_for_the_speed(lines: Lines) -> None:
    first, second = lines([30.0, *(30.0 + 0.5 * i for i in range(1, 41))], 101)
    assert first == "training: 1/101, loss 1"
    assert second == "training: 31/101, 35 s left, loss 1"  # 70 steps of half a second


def test_the_time_left_follows_the_recent_speed(lines: Lines) -> None:
    slow = [1.0 + 15.0 * i for i in range(10)]
    *_, last = lines([*slow, *(slow[-1] + 0.1 * i for i in range(1, 2001))], 5010)
    step, left = re.findall(r"(\d+)/5010, (\d+) s left", last)[0]
    assert float(left) == pytest.approx(0.1 * (5010 - int(step)), rel=0.02)


def test_one_slow_step_changes_the_time_left_little(lines: Lines) -> None:
    times = [float(i) for i in range(1, 61)]
    *_, before, after = lines([*times, 80.0], 1000)  # a step of twenty seconds after steps of one second
    first, second = (float(re.findall(r"(\d+) s left", line)[0]) for line in (before, after))
    assert second < 1.5 * first


def test_steps_of_minutes_have_a_time_left(lines: Lines) -> None:
    assert lines([300.0, 600.0], 4)[-1] == "training: 2/4, 600 s left, loss 1"


def test_a_single_step_ends_at_once(lines: Lines) -> None:
    assert lines([1.0], 1) == ["training: 1/1, 0 s left, loss 1"]


def test_steps_of_one_image_are_shown_beside_the_active_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("reshift.system.progress.LINE_SECONDS", 0.0)
    assert list(counted([1, 2], "noise")) == [1, 2]
    assert capsys.readouterr().err == ""
    with progress("scoring", 5):
        assert list(counted([1, 2], "noise")) == [1, 2]
    assert capsys.readouterr().err.splitlines() == ["scoring: 0/5, noise 1/2", "scoring: 0/5, noise 2/2"]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress("scoring", 2) as advance:
        advance(2, "last.png")
    shown = capsys.readouterr().err
    assert "━" in shown
    assert "2/2" in shown
    assert "last.png" in shown


def test_nothing_is_shown_when_quiet_or_when_all_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    for total, quiet in ((3, True), (0, False)):
        with progress("scoring", total, quiet=quiet) as advance:
            advance(3)
    assert capsys.readouterr().err == ""
