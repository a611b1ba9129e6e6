"""``accelerate`` puts fast twins in place where they run, leaves out what it should, and changes no result."""

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import TINY_DMD
from interpreted import interpret
from torch import nn

from reshift.errors import UserError
from reshift.inference.bundle import build
from reshift.kernels import accelerate, available, streams, table
from reshift.kernels.available import VARIABLE, Twin, plain_type
from reshift.methods.detector import Step
from reshift.nets.vqvae import VQVAE
from reshift.training import step as training
from reshift.training.run import resolve

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forget() -> None:
    available.compiles_on.cache_clear()


def twins(module: nn.Module) -> set[str]:
    return {type(layer).__name__ for layer in module.modules() if isinstance(layer, Twin)}


def dmd() -> Any:
    return build(resolve(None, "paper", [TINY_DMD]))


def test_on_a_cpu_only_windows_are_decoded() -> None:
    model = dmd()
    names = set(model.state_dict())
    assert accelerate(model, CPU) is model
    assert twins(model) == {"WindowedDecoder"}
    assert set(model.state_dict()) == names
    assert accelerate(VQVAE(), CPU, skip=("windows",)).decoder.__class__.__name__ == "Decoder"


@pytest.mark.parametrize("wish", ["off", "windows", "conv,windows"])
def test_the_environment_can_leave_out_parts(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, wish)
    assert twins(accelerate(dmd(), CPU)) == set()


def test_an_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "windows,convs")
    with pytest.raises(UserError, match=r"RESHIFT_KERNELS: unknown name 'convs'.*group_norm"):
        accelerate(dmd(), CPU)


def test_importing_and_accelerating_on_a_cpu_needs_no_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import torch, reshift.training.loop, reshift.inference.model\n"
    code += "import reshift.nets.vqvae as nets, reshift.kernels; reshift.kernels.accelerate(nets.VQVAE(), torch.device('cpu'))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_twin_knows_its_plain_class() -> None:
    decoder = accelerate(VQVAE(), CPU).decoder
    assert plain_type(decoder).__name__ == "Decoder"
    assert plain_type(nn.ReLU()) is nn.ReLU


# ---- where kernels compile -------------------------------------------------------------------------------------------------


def trial(monkeypatch: pytest.MonkeyPatch, answer: float | Exception) -> list[torch.device]:
    """A trial kernel with this result; returns the devices it is called for."""
    asked = list[torch.device]()

    def doubled(_value: float, device: torch.device) -> float:
        asked.append(device)
        if isinstance(answer, Exception):
            raise answer
        return answer

    module = ModuleType("reshift.kernels.trial")
    module.doubled = doubled  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def test_a_device_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trial(monkeypatch, 2.0)
    assert available.compiles_on(CPU)
    assert available.compiles_on(CPU)
    assert asked == [CPU]


def test_without_a_compiler_torch_s_own_kernels_run_and_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, RuntimeError("Failed to find C compiler.\nPlease specify via CC"))
    with pytest.warns(UserWarning, match=r"cannot be compiled here \(Failed to find C compiler\.\)"):
        assert not available.compiles_on(CPU)
    assert not available.compiles_on(CPU)  # and only once


def test_a_wrong_result_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, 3.0)
    assert not available.compiles_on(CPU)


def test_nothing_is_tried_off_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trial(monkeypatch, 2.0)
    assert not available.runs_on(CPU)
    assert asked == []


# ---- all twins together, interpreted ---------------------------------------------------------------------------------------


def losses(*, fast: bool) -> list[float]:
    """Both stages of a small DMD, two steps each, by our own kernels and as recorded steps do, or by torch's."""
    vars(table)["runs_on"] = vars(training)["runs_on"] = vars(available)["on_gpu"] = lambda _: fast
    vars(streams)["_recording"] = lambda _x: fast
    torch.manual_seed(0)
    detector = accelerate(build(config := resolve(None, "paper", [TINY_DMD])), CPU)
    assert twins(detector) == {row.twin.partition(".")[2] for row in table.TWINS if fast or row.cpu}
    found = []
    for stage in detector.stages():
        detector.eval().requires_grad_(False)
        for part in stage.objectives[0].modules:
            part.train().requires_grad_(True)
        trained = training.make_optimisers(stage.objectives, detector, config.train, CPU)
        assert (trained[0].fused is not None) == fast
        for group in trained[0].optimiser.param_groups:
            group["lr"] = torch.tensor(group["lr"])  # as on a GPU
        for i in range(2):
            step = Step(torch.Generator().manual_seed(i))
            logs = training.one_step(trained, 2.0 * step.uniform(2, 1, 32, 32) - 1.0, step, config.train)
            found += [float(logs["loss"]), float(logs["gradient"])]
    return found


def compare() -> None:
    from reshift.kernels.trial import doubled

    assert doubled(-1.5, CPU) == -3.0
    assert losses(fast=True) == pytest.approx(losses(fast=False), rel=1e-5)


def test_training_with_all_twins_is_training_without() -> None:
    interpret("test_accelerate", "compare")
