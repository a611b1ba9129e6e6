"""In which precision DMD predicts: bf16 changes maps a little, scores not at all, and never by itself on a CPU."""

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from small_dmd import images, make
from torch import Tensor

from reshift.errors import UserError
from reshift.methods.dmd.method import DMD
from reshift.system.device import VARIABLE, scoring

CPU = torch.device("cpu")


def predicted(model: DMD, x: Tensor, monkeypatch: pytest.MonkeyPatch, amp: str) -> tuple[Tensor, Tensor]:
    monkeypatch.setenv(VARIABLE, amp)
    with torch.inference_mode(), scoring(CPU, model):
        return model.predict(x)


def test_bf16_changes_maps_a_little_and_scores_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make().eval(), images(4)
    score, heatmap = predicted(model, x, monkeypatch, "off")
    score_half, heatmap_half = predicted(model, x, monkeypatch, "bf16")
    assert torch.equal(score, score_half)
    assert heatmap_half.dtype == torch.float32
    assert not torch.equal(heatmap, heatmap_half)  # it was in use
    assert torch.allclose(heatmap, heatmap_half, atol=0.05)


def test_bf16_has_the_same_bits_alone_and_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make().eval(), images(3)
    together = predicted(model, x, monkeypatch, "bf16")
    for i in range(3):
        alone = predicted(model, x[i : i + 1], monkeypatch, "bf16")
        assert torch.equal(alone[0][0], together[0][i])
        assert torch.equal(alone[1][0], together[1][i])


class Plain:
    """A method that allows bf16 on a GPU only."""

    bf16 = True


def half(monkeypatch: pytest.MonkeyPatch, amp: str, detector: object) -> bool:
    monkeypatch.setenv(VARIABLE, amp)
    with scoring(CPU, detector):
        return torch.is_autocast_enabled("cpu")


def test_who_computes_in_bf16_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for amp in ("", "auto", "off"):  # what a processor can do must not decide about results
        assert not half(monkeypatch, amp, DMD)
    assert half(monkeypatch, "bf16", DMD)
    assert not any(half(monkeypatch, amp, Plain()) for amp in ("auto", "bf16", "off"))
    with pytest.raises(UserError, match="RESHIFT_AMP='fp8'"):
        half(monkeypatch, "fp8", DMD)


def test_dmd_predicts_in_bf16_on_a_gpu_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, torch.dtype]]()

    def autocast(kind: str, dtype: torch.dtype) -> AbstractContextManager[object]:
        asked.append((kind, dtype))
        return nullcontext()

    monkeypatch.setattr(torch, "autocast", autocast)  # the real one warns where there is no GPU
    for amp in ("off", "auto", "bf16"):
        monkeypatch.setenv(VARIABLE, amp)
        scoring(torch.device("cuda"), DMD)
    assert asked == [("cuda", torch.bfloat16)] * 2
