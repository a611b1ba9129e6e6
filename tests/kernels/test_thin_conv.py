"""Convolutions from or to one channel: the kernels, interpreted, against torch."""

import torch
from interpreted import interpret
from torch import Tensor, nn

# images, wide channels, rows and columns of the input, kernel, stride, padding: tiles that are not full, edges that count
WIDEN = [(2, 32, 9, 7, 3, 1, 1), (1, 5, 12, 10, 4, 2, 1), (3, 20, 8, 8, 3, 1, 0), (1, 128, 5, 6, 3, 2, 1), (1, 1, 1, 1, 3, 1, 1)]
WIDEN += [(2, 3, 9, 33, 3, 1, 1), (1, 16, 19, 38, 4, 2, 1), (1, 9, 6, 20, 4, 1, 0), (1, 2, 9, 9, 1, 3, 0), (1, 2, 5, 5, 2, 20, 1)]
NARROW = [(2, 32, 5, 3, 4, 2, 1), (1, 7, 6, 6, 3, 1, 1), (1, 3, 4, 5, 2, 2, 0), (2, 16, 3, 3, 4, 3, 1), (1, 64, 2, 2, 3, 2, 2)]
NARROW += [(1, 3, 6, 33, 4, 2, 1), (1, 16, 17, 19, 3, 1, 1), (1, 5, 9, 17, 4, 3, 2)]  # more lines and columns than a program has
Case = tuple[int, int, int, int, int, int, int]


def layer_and_input(case: Case, *, transposed: bool, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    b, c, h, w, k, s, p = case
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(c, 1, k, s, p) if transposed else nn.Conv2d(1, c, k, s, p, bias=False)
    return layer.to(dtype), torch.randn(b, c if transposed else 1, h, w).to(dtype)


def outcome(layer: nn.Module, x: Tensor, back: Tensor, way: str) -> list[Tensor]:
    """Output and all gradients."""
    from reshift.kernels.thin_conv import fused

    given = x.clone().requires_grad_()
    y = fused(given, layer) if way == "fused" else layer(given)  # type: ignore[arg-type]
    return [y, *torch.autograd.grad(y, (given, *layer.parameters()), back)]


def one_channel_and_nothing_unusual_only() -> None:
    from reshift.kernels.thin_conv import fits

    assert fits(nn.Conv2d(1, 32, 3))
    assert not fits(nn.Conv2d(3, 32, 3))
    assert not fits(nn.ConvTranspose2d(32, 3, 4))
    assert not fits(nn.Conv2d(1, 32, 3, stride=(1, 2)))
    assert not fits(nn.Conv2d(1, 32, 3, dilation=2))
    assert not fits(nn.Conv2d(1, 256, 3))
    assert not fits(nn.Conv2d(1, 32, 5))
    assert not fits(nn.Conv2d(1, 32, 3, padding=1, padding_mode="reflect"))
    assert not fits(nn.ConvTranspose2d(32, 1, 4, 2, output_padding=1))


def compare(dtype: torch.dtype, tolerance: float, *, programs: int, tile: int, every: int) -> None:
    """Against torch in float32 on the same numbers; few programs have several rounds each. ``every`` n-th case."""
    from reshift.kernels import thin_conv as kernels

    kernels.PROGRAMS, kernels.TILE = programs, tile
    for cases, transposed in ((WIDEN, False), (NARROW, True)):
        for case in cases[::every]:
            if tile // max(16, case[1]) < 16:  # a product of tiles wants at least 16 of everything
                continue
            layer, x = layer_and_input(case, transposed=transposed, dtype=dtype)
            back = torch.randn_like(layer.float()(x.float())).to(dtype)
            exact = outcome(layer, x.float(), back.float(), "plain")
            ours = outcome(layer.to(dtype), x, back, "fused")
            for found, value in zip(ours, exact, strict=True):
                assert found.shape == value.shape
                torch.testing.assert_close(found.float(), value, atol=tolerance, rtol=tolerance, msg=f"{case} {transposed}")


def compare_all() -> None:
    one_channel_and_nothing_unusual_only()
    compare(torch.float32, 1e-4, programs=2, tile=256, every=1)
    compare(torch.float32, 1e-4, programs=512, tile=4096, every=4)
    compare(torch.float16, 2e-2, programs=2, tile=256, every=4)  # not bf16: the interpreter multiplies its bits


def test_kernels_agree_with_torch() -> None:
    interpret("test_thin_conv", "compare_all")
