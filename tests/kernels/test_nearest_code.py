"""The kernel that searches for the nearest code finds what Eq. 2 says, and the codebook has an embedding's gradient."""

import torch
from interpreted import interpret
from torch.nn import functional as F

from reshift.core.quantize import nearest_code


def compare() -> None:
    from reshift.kernels.nearest_code import lookup, search

    for b, d, n, codes in ((2, 64, 16, 256), (3, 5, 3, 10), (1, 20, 7, 300)):
        generator = torch.Generator().manual_seed(b)
        z, codebook = torch.randn(b, d, n, n, generator=generator), torch.randn(codes, d, generator=generator)
        assert torch.equal(search(z, codebook), nearest_code(z, codebook))
    codebook = torch.ones(200, 8)
    codebook[7] = codebook[190] = 0.0
    assert bool((search(torch.zeros(1, 8, 2, 2), codebook) == 7).all())  # the first of equals
    k, back = torch.randint(0, 6, (3, 4, 6)), torch.randn(3, 5, 4, 6)  # the last code is never chosen
    codebook = torch.randn(7, 5, requires_grad=True)
    (ours,) = torch.autograd.grad(lookup(k, codebook), codebook, back)
    (theirs,) = torch.autograd.grad(F.embedding(k, codebook).permute(0, 3, 1, 2), codebook, back)
    torch.testing.assert_close(ours, theirs)
    assert not ours[-1].any()


def test_search_and_lookup_are_those_of_core() -> None:
    interpret("test_nearest_code", "compare")
