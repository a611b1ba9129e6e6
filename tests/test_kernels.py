"""Our own kernels run where Triton can compile; where it cannot, one line says so and torch's own run."""

import sys
from types import ModuleType

import pytest
import torch

from helpers import interpret
from reshift.nets import kernels

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forget() -> None:
    kernels.compile_on.cache_clear()


def trial(monkeypatch: pytest.MonkeyPatch, answer: float | Exception) -> list[torch.device]:
    """A trial kernel that answers so, and where it was asked."""
    asked = list[torch.device]()

    def doubled(_value: float, device: torch.device) -> float:
        asked.append(device)
        if isinstance(answer, Exception):
            raise answer
        return answer

    module = ModuleType("reshift.nets.trial_triton")
    module.doubled = doubled  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def test_a_machine_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trial(monkeypatch, 2.0)
    assert kernels.compile_on(CPU)
    assert kernels.compile_on(CPU)
    assert asked == [CPU]


def test_without_a_compiler_torch_s_own_run_and_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, RuntimeError("Failed to find C compiler.\nPlease specify via CC"))
    with pytest.warns(UserWarning, match=r"cannot be compiled here \(Failed to find C compiler\.\)"):
        assert not kernels.compile_on(CPU)
    assert not kernels.compile_on(CPU)  # and only once


def test_a_wrong_answer_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, 3.0)
    assert not kernels.compile_on(CPU)


def test_nothing_is_tried_off_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trial(monkeypatch, 2.0)
    assert not kernels.run_on(torch.zeros(1))
    assert asked == []


def the_trial_doubles() -> None:
    from reshift.nets.trial_triton import doubled

    assert doubled(1.0, CPU) == 2.0
    assert doubled(-1.5, CPU) == -3.0


def test_the_trial_kernel_doubles() -> None:
    interpret("test_kernels", "the_trial_doubles()")
