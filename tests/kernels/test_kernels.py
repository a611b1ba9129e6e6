"""Our own kernels run where Triton can compile, and train as torch's do; where it cannot, a line says so and torch's own run."""

import sys
from types import ModuleType

import pytest
import torch
from helpers import TINY_DMD, interpret

from reshift.inference.bundle import build
from reshift.methods.detector import Step
from reshift.nets import attention, beside, conv, groupnorm, kernels, nearest, norm_pool, norm_relu, thin
from reshift.training import step as optimise
from reshift.training.loop import as_module
from reshift.training.run import resolve

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


def losses(*, own: bool) -> list[float]:
    """Both stages of a small DMD, two steps each, by our own kernels and as recorded steps do, or by torch's."""
    for module in (attention, conv, groupnorm, nearest, norm_pool, norm_relu, optimise, thin):
        vars(module)["run_on"] = lambda _x: own
    vars(beside)["_recording"] = lambda _x: own
    torch.manual_seed(0)
    detector = build(config := resolve(None, "paper", [TINY_DMD]))
    found = []
    for stage in detector.stages():
        as_module(detector).eval().requires_grad_(False)
        for part in stage.objectives[0].modules:
            part.train().requires_grad_(True)
        trained = optimise.optimisers(stage.objectives, None, config.train, CPU)
        assert (trained[0].fused is not None) == own
        for group in trained[0].optimiser.param_groups:
            group["lr"] = torch.tensor(group["lr"])  # as on a GPU
        for i in range(2):
            step = Step(torch.Generator().manual_seed(i))
            logs = optimise.one_step(trained, 2.0 * step.uniform(4, 1, 32, 32) - 1.0, step, config.train)
            found += [float(logs["loss"]), float(logs["gradient"])]
    return found


def training_is_the_same() -> None:
    assert losses(own=True) == pytest.approx(losses(own=False), rel=1e-5)


def test_a_whole_training_by_our_own_kernels_is_torch_s() -> None:
    interpret("test_kernels", "training_is_the_same()")
