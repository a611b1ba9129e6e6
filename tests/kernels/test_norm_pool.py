"""BatchNorm, ReLU, max-pooling: torch's own on the CPU; the fused kernels, interpreted, wherever Triton is installed."""

from itertools import product

import pytest
import torch
from helpers import interpret
from torch import Tensor
from torch.nn import functional as F

from reshift.nets.classifier import POOLED, Classifier, means
from reshift.nets.norm import BatchNorm
from reshift.nets.norm_pool import NormPool, fused

SHAPES = [(2, 32, 4, 6), (3, 5, 6, 10), (1, 1, 2, 2), (1, 12, 2, 34), (2, 96, 4, 2), (1, 3, 14, 22)]
LIMITS = [((2048, 1024), (1024, 512)), ((64, 5), (32, 3))]  # the second: several tiles in a slab, and the last not full


def make(c: int, *, train: bool = True) -> NormPool:
    """Weights of both signs and one of 0, statistics that are not those of any batch."""
    norm = NormPool(c)
    torch.nn.init.uniform_(norm.weight, -1.5, 1.5)
    torch.nn.init.uniform_(norm.bias, -0.5, 1.0)
    with torch.no_grad():
        norm.weight[c // 2] *= 0.0 if c > 2 else 1.0
        norm.running_mean.uniform_(-1.0, 1.0)  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return norm.train(train)


def in_the_old_order(norm: NormPool, x: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(BatchNorm.forward(norm, x)), 2)


def outcome(norm: NormPool, x: Tensor, back: Tensor, way: str) -> dict[str, Tensor]:
    """Output, gradients and what is left in the buffers, which are put back."""
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    given = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = in_the_old_order(norm, given) if way == "old" else fused(given, norm) if way == "fused" else norm(given)
    dx, dw, db = torch.autograd.grad(y, (given, norm.weight, norm.bias), back.to(y.dtype))
    buffers = {name: value.clone() for name, value in norm.named_buffers()}
    norm.load_state_dict(before)
    return {"y": y.detach(), "dx": dx, "dw": dw, "db": db, **buffers}


def images(*shape: int, ties: bool = False) -> Tensor:
    """Channels last, around a mean that is not 0; with ``ties`` of few different values."""
    x = 2.0 * torch.randn(*shape) + 0.7
    return (x.round() if ties else x).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("shape", [(3, 6, 8, 8), (2, 5, 7, 9)])
def test_on_the_cpu_pooling_before_relu_changes_no_bit(shape: tuple[int, ...], ties: bool, train: bool) -> None:
    torch.manual_seed(0)
    norm, x = make(shape[1], train=train), images(*shape, ties=ties)
    back = torch.randn(shape[0], shape[1], shape[2] // 2, shape[3] // 2)
    old, own = outcome(norm, x, back, "old"), outcome(norm, x, back, "own")
    assert old.keys() == own.keys()
    for name, value in old.items():
        assert torch.equal(own[name], value), name
    assert (own["y"] == 0).any()
    assert set(norm.state_dict()) == set(BatchNorm(3).state_dict())  # weights do not know how they were computed


def test_fusible_only_where_windows_cover_all_and_one_process_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = make(2)
    assert norm.fusible(torch.zeros(1, 2, 4, 6))
    assert not norm.fusible(torch.zeros(1, 2, 5, 6))
    assert not norm.fusible(torch.zeros(1, 2, 4, 7))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    assert not norm.fusible(torch.zeros(1, 2, 4, 6))
    assert norm.eval().fusible(torch.zeros(1, 2, 4, 6))


def test_no_convolution_of_the_classifier_has_a_bias_that_batchnorm_would_cancel() -> None:
    names = {name for name, _ in Classifier(1, (4, 8), 16).convs.named_parameters()}
    assert names == {f"{block}.{name}" for block in "01" for name in ("0.weight", "1.weight", "1.bias")}


def compare_in_float32() -> None:
    """Everything, in shapes that fill no tile, several tiles and several slabs; with ties torch chooses the same positions."""
    from reshift.nets import norm_pool_triton as kernels

    for limits, shape, train, ties in product(LIMITS, SHAPES, (True, False), (True, False)):
        kernels.STATISTICS, kernels.WINDOWS = limits
        torch.manual_seed(0)
        norm, x = make(shape[1], train=train), images(*shape, ties=ties)
        back = torch.randn(shape[0], shape[1], shape[2] // 2, shape[3] // 2)
        ours, theirs = outcome(norm, x, back, "fused"), outcome(norm, x, back, "old")
        assert ours["y"].is_contiguous(memory_format=torch.channels_last)
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, atol=1e-4, rtol=1e-4, msg=f"{name} of {shape}")


def compare_in_bf16() -> None:
    """Against float32 on the same numbers: only tensors that are written lose digits, once."""
    for shape in SHAPES[:4]:
        for train in (True, False):
            torch.manual_seed(0)
            norm, x = make(shape[1], train=train), images(*shape).to(torch.bfloat16)
            back = torch.randn(shape[0], shape[1], shape[2] // 2, shape[3] // 2).to(torch.bfloat16)
            ours, exact = outcome(norm, x, back, "fused"), outcome(norm, x.float(), back.float(), "old")
            assert ours["y"].dtype == ours["dx"].dtype == torch.bfloat16
            assert ours["dw"].dtype == ours["running_var"].dtype == torch.float32
            for name, value in exact.items():
                rtol = 2.0**-7 if name in ("y", "dx") else 1e-4  # Triton's interpreter cuts digits off where a GPU rounds
                torch.testing.assert_close(ours[name].to(value.dtype), value, atol=1e-5, rtol=rtol)


def keeps_digits_and_nan() -> None:
    """A mean of a thousand deviations leaves the variance right, and a NaN is not taken for 0."""
    torch.manual_seed(0)
    norm, x, back = make(3), images(2, 3, 8, 8) + 2000.0, torch.randn(2, 3, 4, 4)
    ours = outcome(norm, x, back, "fused")
    expected = 0.9 * norm.running_var + 0.1 * x.double().transpose(0, 1).flatten(1).var(1)  # type: ignore[operator]
    torch.testing.assert_close(ours["running_var"].double(), expected, rtol=1e-5, atol=0.0)
    x[0, 1, 3, 3] = float("nan")
    for train, spoilt in ((True, 32), (False, 1)):
        found = outcome(norm.train(train), x, back, "fused")["y"].isnan()
        assert int(found.sum()) == int(found[:, 1].sum()) == spoilt


@pytest.mark.parametrize("check", ["compare_in_float32", "compare_in_bf16", "keeps_digits_and_nan"])
def test_fused_kernels_agree_with_torch(check: str) -> None:
    interpret("test_norm_pool", f"{check}()")


def test_equal_windows_have_the_adaptive_pooling_s_means_and_gradients() -> None:
    x = torch.randn(2, 3, 8, 12, requires_grad=True)
    weights = torch.randn(2, 3, POOLED, POOLED)
    (expected,) = torch.autograd.grad((F.adaptive_avg_pool2d(x, POOLED) * weights).sum(), x)
    assert torch.allclose(means(x), F.adaptive_avg_pool2d(x, POOLED), atol=1e-6)
    (found,) = torch.autograd.grad((means(x) * weights).sum(), x)
    assert torch.allclose(found, expected, atol=1e-7)
