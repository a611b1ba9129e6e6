"""BatchNorm, ReLU: torch's own on the CPU; the fused kernels, interpreted, wherever Triton is installed."""

from itertools import product

import pytest
import torch
from helpers import interpret
from torch import Tensor, nn

from reshift.nets.norm import BatchNorm
from reshift.nets.norm_relu import NormRelu, fused
from reshift.nets.vqvae import VQVAE

SHAPES = [(2, 32, 4, 6), (3, 5, 3, 7), (2, 1, 1, 1), (1, 12, 1, 35), (2, 96, 5, 2), (1, 3, 14, 23)]
LIMITS = [((2048, 1024), (2048, 512)), ((64, 5), (32, 3))]  # the second: several tiles in a slab, and the last not full
KEYS = [  # of an autoencoder with two widths, as bundles hold them
    "codebook",
    "encoder.0.0.weight",
    "encoder.0.1.weight", "encoder.0.1.bias",
    "encoder.0.1.running_mean", "encoder.0.1.running_var", "encoder.0.1.num_batches_tracked",
    "encoder.1.0.weight",
    "encoder.1.1.weight", "encoder.1.1.bias",
    "encoder.1.1.running_mean", "encoder.1.1.running_var", "encoder.1.1.num_batches_tracked",
    "encoder.2.weight", "encoder.2.bias",
    "decoder.0.weight", "decoder.0.bias",
    "decoder.1.0.weight",
    "decoder.1.1.weight", "decoder.1.1.bias",
    "decoder.1.1.running_mean", "decoder.1.1.running_var", "decoder.1.1.num_batches_tracked",
    "decoder.2.weight", "decoder.2.bias",
]  # fmt: skip


def make(c: int, *, train: bool = True) -> NormRelu:
    """Weights of both signs and one of 0, statistics that are not those of any batch."""
    norm = NormRelu(c)
    nn.init.uniform_(norm.weight, -1.5, 1.5)
    nn.init.uniform_(norm.bias, -0.5, 1.0)
    with torch.no_grad():
        norm.weight[c // 2] *= 0.0 if c > 2 else 1.0
        norm.running_mean.uniform_(-1.0, 1.0)  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return norm.train(train)


def outcome(norm: NormRelu, x: Tensor, back: Tensor, way: str) -> dict[str, Tensor]:
    """Output, gradients and what is left in the buffers, which are put back."""
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    given = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = nn.ReLU()(BatchNorm.forward(norm, given)) if way == "apart" else fused(given, norm) if way == "fused" else norm(given)
    learned = {name: value for name, value in norm.named_parameters() if value.requires_grad}
    grads = torch.autograd.grad(y, (given, *learned.values()), back.to(y.dtype))
    buffers = {name: value.clone() for name, value in norm.named_buffers()}
    norm.load_state_dict(before)
    return {"y": y.detach(), **dict(zip(("dx", *learned), grads, strict=True)), **buffers}


def images(*shape: int) -> Tensor:
    """Channels last, around a mean that is not 0."""
    return (2.0 * torch.randn(*shape) + 0.7).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("shape", [(3, 6, 8, 8), (2, 5, 7, 9)])
def test_on_the_cpu_it_is_batchnorm_then_relu_to_the_bit(shape: tuple[int, ...], train: bool) -> None:
    torch.manual_seed(0)
    norm, x, back = make(shape[1], train=train), images(*shape), torch.randn(*shape)
    apart, own = outcome(norm, x, back, "apart"), outcome(norm, x, back, "own")
    assert apart.keys() == own.keys()
    for name, value in apart.items():
        assert torch.equal(own[name], value), name
    assert (own["y"] == 0).any()


def test_fusible_only_where_one_process_has_all_and_torch_would_not_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = make(2)
    assert norm.fusible(torch.zeros(1, 2, 5, 7))
    assert not norm.fusible(torch.zeros(0, 2, 5, 7))
    assert not norm.fusible(torch.zeros(1, 2, 1, 1))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(torch.zeros(1, 2, 1, 1))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    assert not norm.fusible(torch.zeros(1, 2, 5, 7))
    assert norm.eval().fusible(torch.zeros(1, 2, 1, 1))


def test_a_saved_autoencoder_still_loads() -> None:
    assert list(VQVAE(1, (4, 8), 4, 8).state_dict()) == KEYS


def compare(dtype: torch.dtype, tolerance: float) -> None:
    """Against float32 on the same numbers: shapes that fill no tile, several tiles, several slabs; also with fixed weights."""
    from reshift.nets import norm_pool_triton, norm_relu_triton

    for limits, shape, train in product(LIMITS, SHAPES, (True, False)):
        norm_pool_triton.STATISTICS, norm_relu_triton.ELEMENTS = limits
        torch.manual_seed(0)
        norm, x, back = make(shape[1], train=train), images(*shape).to(dtype), torch.randn(*shape).to(dtype)
        for learns in (True, False):
            norm.requires_grad_(learns)
            ours, exact = outcome(norm, x, back, "fused"), outcome(norm, x.float(), back.float(), "apart")
            assert ours["y"].dtype == ours["dx"].dtype == dtype
            assert ours["y"].is_contiguous(memory_format=torch.channels_last)
            assert ours.keys() == exact.keys()
            for name, value in exact.items():
                close = tolerance if name in ("y", "dx") else 1e-4
                assert name in ("y", "dx") or ours[name].dtype == value.dtype
                torch.testing.assert_close(ours[name].to(value.dtype), value, atol=close, rtol=close, msg=f"{name} of {shape}")


def keeps_nan() -> None:
    """A NaN is not taken for 0, nor is its gradient."""
    torch.manual_seed(0)
    norm, x, back = make(3), images(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    x[0, 1, 3, 3] = float("nan")
    for train, spoilt in ((True, 128), (False, 1)):
        ours, theirs = (outcome(norm.train(train), x, back, way) for way in ("fused", "apart"))
        assert int(ours["y"].isnan().sum()) == int(ours["y"][:, 1].isnan().sum()) == spoilt
        assert torch.equal(ours["dx"].isnan(), theirs["dx"].isnan())
        assert train or ours["dx"][0, 1, 3, 3] == theirs["dx"][0, 1, 3, 3]


def refuses_statistics_that_have_moved() -> None:
    """As torch does: going back with running statistics, these must still be those that were used."""
    norm, x = make(3, train=False), images(2, 3, 4, 4).requires_grad_()
    y = fused(x, norm)
    fused(x, norm.train())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    "check",
    ["compare(torch.float32, 1e-4)", "compare(torch.float16, 2e-3)", "compare(torch.bfloat16, 1.6e-2)", "keeps_nan()",
     "refuses_statistics_that_have_moved()"],
)  # fmt: skip
def test_fused_kernels_agree_with_torch(check: str) -> None:
    interpret("test_norm_relu", check)
