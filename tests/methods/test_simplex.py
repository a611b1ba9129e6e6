"""OpenSimplex noise, value for value against the package ``opensimplex``, and AnoDDPM's fractal sum against its loop."""

import numpy as np
import pytest
import torch
from opensimplex import OpenSimplex  # type: ignore[import-untyped]
from torch import Tensor

from reshift.methods.diffusion.simplex import _extra_vertices, _noise, fractal_noise, permutations

SEEDS = (0, 3, -5, 1234567)


def table(seed: int) -> Tensor:
    return torch.from_numpy(OpenSimplex(seed)._perm)


def reference(seed: int, points: Tensor) -> Tensor:
    """The package's value at each row of ``points (N, 3)``."""
    noise = OpenSimplex(seed)
    return torch.tensor([noise.noise3(x, y, z) for x, y, z in points.double().tolist()], dtype=torch.float64)


def scattered(kind: str, count: int) -> Tensor:
    """Points anywhere, on dyadic grids like pixels (many exactly on a border of cells), or close beside such grids."""
    rng = np.random.default_rng(0)
    if kind == "anywhere":
        return torch.from_numpy(rng.uniform(-300.0, 300.0, (count, 3)))
    grid = rng.integers(-400, 400, (count, 3)) / {"halves": 2, "sixths": 6, "pixels": 64, "beside": 4}[kind]
    return torch.from_numpy(grid + (rng.normal(0.0, 1e-3, grid.shape) if kind == "beside" else 0.0))


@pytest.mark.parametrize("kind", ["anywhere", "halves", "sixths", "pixels", "beside"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_equals_the_package(kind: str, dtype: torch.dtype) -> None:
    points = scattered(kind, 1500).to(dtype)
    perm = torch.stack([table(seed) for seed in SEEDS])
    got = _noise(perm, points.double().T[:, None].expand(3, len(SEEDS), -1), dtype)  # (seeds, N)
    expected = torch.stack([reference(seed, points) for seed in SEEDS])
    assert got.dtype == dtype
    assert (got - expected).abs().max() < (1e-6 if dtype == torch.float32 else 1e-13)
    assert expected.abs().max() > 0.5


def test_all_24_choices_of_extra_vertices_occur() -> None:
    """Six in either tetrahedron, twelve in the octahedron: all occur in one cell, and a dense grid has the package's values."""
    octahedron, mirror, extra = _extra_vertices(torch.rand(3, 1, 5000, generator=torch.Generator().manual_seed(0)))
    choices = torch.cat([octahedron, mirror, *(v.flatten(0, 1) for v in extra)]).long().T.unique(dim=0)
    assert len(choices) == 24
    axis = torch.linspace(-1.0, 1.0, 17, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis + 0.01, axis - 0.02)
    got = _noise(table(7)[None], points.T[:, None], torch.float64)[0]
    assert (got - reference(7, points)).abs().max() < 1e-13


def test_permutations_are_permutations_and_differ() -> None:
    uniform = torch.rand(5, 256, generator=torch.Generator().manual_seed(0))
    perm = permutations(uniform)
    assert perm.dtype == torch.int64
    assert torch.equal(perm.sort(1).values, torch.arange(256).expand(5, 256))
    assert len({tuple(row) for row in perm.tolist()}) == 5
    assert torch.equal(perm[2:3], permutations(uniform[2:3]))


@pytest.mark.parametrize("wavelength", [64.0, 20.0])
def test_fractal_noise_is_anoddpms_sum(wavelength: float) -> None:
    H, W, z, octaves, persistence = 6, 9, (250.0, 17.0), 6, 0.8
    got = fractal_noise(torch.stack([table(4), table(5)]), H, W, torch.tensor(z), octaves, persistence, wavelength)
    expected = np.zeros((2, 1, H, W))
    for b, seed in enumerate((4, 5)):
        noise, frequency, amplitude = OpenSimplex(seed), wavelength, 1.0
        for _ in range(octaves):
            for i in range(H):
                for j in range(W):
                    expected[b, 0, i, j] += amplitude * noise.noise3(j / frequency, i / frequency, z[b] / frequency)
            frequency, amplitude = frequency / 2, amplitude * persistence
    assert got.dtype == torch.float32
    assert np.abs(got.numpy() - expected).max() < 3e-6


def test_fields_differ_by_sample_and_do_not_depend_on_the_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    perm, z = permutations(torch.rand(3, 256, generator=generator)), torch.tensor([1.0, 1.0, 2.5])
    fields = fractal_noise(perm, 32, 24, z)
    assert fields.shape == (3, 1, 32, 24)
    assert (fields[0] - fields[1]).abs().mean() > 0.1  # same z, another table
    assert torch.equal(fields[1:2], fractal_noise(perm[1:2], 32, 24, z[1:2]))
    other_slice = fractal_noise(perm[:1], 32, 24, torch.tensor([40.0]))
    assert (fields[:1] - other_slice).abs().mean() > 0.1  # same table, another z


def test_the_documented_standard_deviation() -> None:
    generator = torch.Generator().manual_seed(0)
    perm, z = permutations(torch.rand(64, 256, generator=generator)), torch.randint(0, 1000, (64,), generator=generator)
    fields = fractal_noise(perm, 64, 64, z)
    assert float(fields.std()) == pytest.approx(0.51, abs=0.03)
    assert float(fields.mean()) == pytest.approx(0.0, abs=0.1)
