"""OpenSimplex noise (Kurt Spencer, 2014) for whole batches: AnoDDPM's fractal fields, one random field per sample.

The reference (the package ``opensimplex``) adds up, at every point, the kernels of six or eight vertices of a
face-centred cubic lattice. Its rule for the last two, the "extra" vertices, leaves out a few that reach the point: a
sum over all near vertices differs at one point in eighty, by up to 1e-4. This code follows the rule. It compares in
float64 as the reference does, since a grid of pixels puts many points exactly on the border between two cases. Nothing
branches on a tensor value or copies from the host, so a CUDA graph can record it.
"""

import torch
from torch import Tensor

STRETCH, SQUISH, NORM = -1.0 / 6.0, 1.0 / 3.0, 103.0  # to the lattice's coordinates, back, and to about [-1, 1]


def permutations(uniform: Tensor) -> Tensor:
    """Turn uniform draws into one random permutation of 0…255 per row, ``(B, 256)`` → ``(B, 256)`` int64."""
    return uniform.argsort(dim=1, stable=True)


def fractal_noise(
    perm: Tensor, H: int, W: int, z: Tensor, octaves: int = 6, persistence: float = 0.8, wavelength: float = 64.0
) -> Tensor:
    """Sum octaves of noise in the plane ``z (B,)``, in pixels, as AnoDDPM does: ``(B, 256)`` → ``(B, 1, H, W)`` in float32.

    The first octave has amplitude 1 and ``wavelength`` pixels; each further one has ``persistence`` times the amplitude and half
    the wavelength. The sum is not normalised to unit variance: over 1024 fields of 128×128 with the defaults and z a random
    integer in 0…999 (AnoDDPM's z is the timestep) the standard deviation is 0.51 over all pixels and 0.39–0.60 within 98 % of
    the fields. AnoDDPM gives one field to a whole batch; here each sample has its own.
    """
    rows = torch.arange(H, dtype=torch.float64, device=perm.device).view(1, H, 1)
    columns = torch.arange(W, dtype=torch.float64, device=perm.device).view(1, 1, W)
    points = torch.stack(torch.broadcast_tensors(columns, rows, z.double().view(-1, 1, 1))).flatten(2)  # (3, B, H·W)
    total = torch.zeros(points.shape[1:], device=perm.device)
    for octave in range(octaves):
        total = total + persistence**octave * _noise(perm, points / (wavelength * 0.5**octave), torch.float32)
    return total.view(-1, 1, H, W)


def _noise(perm: Tensor, points: Tensor, dtype: torch.dtype) -> Tensor:
    """Place ``points (3, B, N)`` in the lattice in float64, add up the vertices in ``dtype``: ``(B, N)``."""
    stretched = points + (points[0] + points[1] + points[2]) * STRETCH
    floor = stretched.floor()
    offset = (points - (floor + (floor[0] + floor[1] + floor[2]) * SQUISH)).to(dtype)  # from the cell's origin
    octahedron, mirror, extra = _extra_vertices(stretched - floor)
    # Seen from the cell's far corner with reversed axes, a mirrored vertex 1 - v is v: only the sign of d changes.
    offset, base, turn = torch.where(mirror, 2.0 - offset, offset), floor.long() + mirror, 1 - 2 * mirror.long()
    shifted, gradients = base + turn, _gradients(perm, dtype)

    def fixed(*vertex: int) -> Tensor:
        d = [along - (v + sum(vertex) * SQUISH) for along, v in zip(offset, vertex, strict=True)]
        return _contribution(perm, gradients, [shifted[i] if v else base[i] for i, v in enumerate(vertex)], d)

    total = fixed(1, 0, 0) + fixed(0, 1, 0) + fixed(0, 0, 1)
    total = total + torch.where(octahedron, fixed(0, 1, 1) + fixed(1, 0, 1) + fixed(1, 1, 0), fixed(0, 0, 0))
    for vertex in extra:
        v = vertex.to(dtype)
        d = offset - (v + (v[0] + v[1] + v[2]) * SQUISH)
        total = total + _contribution(perm, gradients, list(base + turn * vertex), list(d))
    return total * turn / NORM


def _contribution(perm: Tensor, gradients: Tensor, vertex: list[Tensor], d: list[Tensor]) -> Tensor:
    """Return one vertex's kernel, (2 - d²)⁴ times gradient · d, from its lattice coordinates and the offset d from it."""
    x, y, z = vertex
    key = perm.gather(1, x & 255)
    key = perm.gather(1, (key + y) & 255)
    key = (key + z) & 255
    slope = gradients[0].gather(1, key) * d[0] + gradients[1].gather(1, key) * d[1] + gradients[2].gather(1, key) * d[2]
    near = (2.0 - d[0] * d[0] - d[1] * d[1] - d[2] * d[2]).clamp(min=0.0).square()
    return near * near * slope


def _gradients(perm: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient each entry of ``perm`` stands for, ``(3, B, 256)``: 11 along one axis, 4 along the others, 8 signs."""
    kind = perm % 24
    signs = kind // 3
    size = torch.stack([4 + 7 * (kind % 3 == i) for i in range(3)])
    sign = torch.stack([2 * (signs & 1) - 1, 1 - (signs & 2), 1 - (signs & 4) // 2])
    return (size * sign).to(dtype)


def _extra_vertices(inside: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """For points ``inside (3, B, N)`` the unit cell: whether in the octahedron, whether mirrored, and the two extra vertices.

    Two opposite corners of the cell are tetrahedra, x + y + z ≤ 1 and ≥ 2, the rest is an octahedron. Mirrored through the
    cell's centre, the second tetrahedron is the first.
    """
    height = inside[0] + inside[1] + inside[2]
    upper = height >= 2.0
    octahedron = (height > 1.0) & ~upper
    tetra = _tetrahedron_extra(torch.where(upper, -inside, inside), torch.where(upper, height - 3.0, 1.0 - height))
    flipped, octa = _octahedron_extra(inside)
    first, second = (torch.where(octahedron, o, t) for o, t in zip(octa, tetra, strict=True))
    return octahedron, torch.where(octahedron, flipped, upper), (first, second)


def _tetrahedron_extra(score: Tensor, corner: Tensor) -> tuple[Tensor, Tensor]:
    """Choose by the two nearest of the corner 0 and the unit vectors; ``corner`` and ``score`` say how near each is."""
    x, y, z = score
    for_y, for_x = (x >= y) & (z > y), (x < y) & (z > x)  # z replaces y, or x
    a, b = torch.where(for_x, z, x), torch.where(for_y, z, y)
    farthest = torch.where(for_y, 1, torch.where(for_x, 0, 2))
    nearest = torch.where(b > a, torch.where(for_y, 2, 1), torch.where(for_x, 2, 0))
    at_corner = corner > torch.minimum(a, b)
    edge, away = _unit(nearest), _unit(farthest)
    first = torch.where(at_corner, edge - _unit((nearest + 1) % 3), 1 - away)
    second = torch.where(at_corner, edge - _unit((nearest + 2) % 3), 1 - 2 * away)
    return first, second


def _octahedron_extra(inside: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Choose by the two nearest of the six vertices: the opposite pair whose nearer vertex is farthest drops out."""
    x, y, z = inside
    sums = torch.stack([y + z, x + z, x + y])
    beyond, (s_x, s_y, s_z) = sums > 1.0, (sums - 1.0).abs()  # beyond: 1 - e_i is nearer than e_i
    drop = torch.where((s_z <= s_y) & (s_z < s_x), 2, torch.where((s_z > s_y) & (s_y < s_x), 1, 0))
    i, j = (drop + 1) % 3, (drop + 2) % 3
    at_i, at_j = beyond.gather(0, i[None])[0], beyond.gather(0, j[None])[0]
    same = at_i == at_j
    first = torch.where(same, 0, 1 - 2 * _unit(torch.where(at_i, i, j)))
    second = torch.where(same, 1 - 2 * _unit(drop), 2 * _unit(torch.where(at_i, j, i)))
    return same & at_i, (first, second)


def _unit(axis: Tensor) -> Tensor:
    """Return unit vectors, ``(B, N)`` → ``(3, B, N)``; int8 because memory traffic limits the speed on a CPU."""
    return torch.stack([axis == i for i in range(3)]).to(torch.int8)
