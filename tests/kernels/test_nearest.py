"""The kernel that looks for the nearest code finds what Eq. 2 says."""

import pytest
import torch
from helpers import interpret

from reshift.core.quantize import nearest_code
from reshift.nets.nearest import fused, nearest


def searched(b: int, d: int, n: int, codes: int) -> None:
    generator = torch.Generator().manual_seed(b)
    z, codebook = torch.randn(b, d, n, n, generator=generator), torch.randn(codes, d, generator=generator)
    assert torch.equal(fused(z, codebook), nearest_code(z, codebook))


def the_first_of_equals() -> None:
    codebook = torch.ones(200, 8)
    codebook[7] = codebook[190] = 0.0
    assert bool((fused(torch.zeros(1, 8, 2, 2), codebook) == 7).all())


@pytest.mark.parametrize("call", ["searched(2, 64, 16, 256)", "searched(3, 5, 3, 10)", "searched(1, 20, 7, 300)"])
def test_it_finds_what_core_finds(call: str) -> None:
    interpret("test_nearest", call)


def test_of_equal_codes_the_first() -> None:
    interpret("test_nearest", "the_first_of_equals()")


def test_off_the_gpu_it_is_core_s() -> None:
    z, codebook = torch.randn(2, 8, 4, 4), torch.randn(16, 8)
    assert torch.equal(nearest(z, codebook), nearest_code(z, codebook))
