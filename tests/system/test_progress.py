"""Lines of progress where nobody watches: seldom, and with an ETA one can believe."""

import re
import time
from collections.abc import Callable

import pytest

from reshift.system import progress
from reshift.system.progress import LINE_SECONDS

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
    slow = [1.0 + 15.0 * i for i in range(10)]
    *_, last = lines([*slow, *(slow[-1] + 0.1 * i for i in range(1, 1001))], 5010)
    step, left = re.findall(r"(\d+)/5010, (\d+) s left", last)[0]
    assert float(left) == pytest.approx(0.1 * (5010 - int(step)), rel=0.02)


def test_one_slow_line_does_not_make_it_jump(lines: Lines) -> None:
    times = [float(i) for i in range(1, 61)]
    *_, before, after = lines([*times, 80.0], 1000)  # a step of twenty seconds among those of one
    first, second = (float(re.findall(r"(\d+) s left", line)[0]) for line in (before, after))
    assert second < 1.5 * first


def test_a_single_step_ends_at_once(lines: Lines) -> None:
    assert lines([1.0], 1) == ["training: 1/1, 0 s left, loss 1"]
