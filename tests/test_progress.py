"""Lines of progress where nobody watches: seldom, and with an ETA one can believe."""

import time
from collections.abc import Callable

import pytest

from reshift import progress
from reshift.progress import LINE_SECONDS

Lines = Callable[[list[float], int], list[str]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lines:
    """What is shown if steps are done at these times."""

    def shown(times: list[float], total: int) -> list[str]:
        clock = iter([0.0, *times])
        monkeypatch.setattr(time, "monotonic", lambda: next(clock))
        with progress.progress("training", total) as advance:
            for _ in times:
                advance(1, "loss 1")
        return capsys.readouterr().err.splitlines()

    return shown


def test_one_line_now_and_then_and_one_at_the_end(lines: Lines) -> None:
    assert lines([1.0, 2.0, 3.0], 3) == ["training: 3/3, 0 s left, loss 1"]
    assert len(lines([LINE_SECONDS * i / 3 for i in range(1, 7)], 7)) == 2


def test_the_first_step_says_nothing_of_the_rest(lines: Lines) -> None:
    first, second = lines([30.0, *(30.0 + 0.5 * i for i in range(1, 41))], 101)
    assert first == "training: 1/101, loss 1"
    assert second == "training: 31/101, 35 s left, loss 1"  # 70 steps at half a second


def test_what_is_left_follows_the_pace_of_late(lines: Lines) -> None:
    *_, last = lines([1.0, 16.0, 31.0, *(31.0 + 0.1 * i for i in range(1, 152))], 1154)
    assert last.startswith("training: 153/1154, 100 s left")


def test_a_single_step_ends_at_once(lines: Lines) -> None:
    assert lines([1.0], 1) == ["training: 1/1, 0 s left, loss 1"]
