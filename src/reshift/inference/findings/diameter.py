"""The longest diameter of a region: the largest distance between two of its voxel centres, exactly (Feret's diameter)."""

import numpy as np
from numpy.typing import NDArray

FEW = 1024  # points, of which all pairs are compared
CHUNK = 2**22  # distances at once


def extreme_voxels(runs: NDArray[np.int32]) -> NDArray[np.int32]:
    """The ends of all runs ``(n, 3)``: every other voxel lies between two of them, so none is farther in any direction."""
    first, last = runs[:, :3], runs[:, [0, 1, 3]] - np.array([0, 0, 1], dtype=np.int32)
    return np.concatenate([first, last[(last != first).any(axis=1)]])


def longest_diameter(voxels: NDArray[np.int32], matrix: NDArray[np.float64]) -> float:
    """Millimetres; ``voxels`` ``(n, 3)`` are indices, ``matrix`` ``(3, 3)`` takes them to millimetres."""
    for axis in range(3):
        if len(voxels) > FEW:
            voxels = _hulls(voxels, axis)
    points = voxels @ matrix.T
    # A longer pair than the one at hand has an end outside the ball that it spans.
    best, ends = 0.0, (points[0], points[0])
    for _ in range(8):  # from one end to the farthest point, and back
        far = points[((points - ends[1]) ** 2).sum(axis=1).argmax()]
        length = float(((far - ends[1]) ** 2).sum())
        if length <= best:
            break
        best, ends = length, (ends[1], far)
    outside = points[((points - (ends[0] + ends[1]) / 2) ** 2).sum(axis=1) >= best / 4 * (1 - 1e-12)]
    for part in np.array_split(outside, max(1, -(-len(outside) * len(points) // CHUNK))):
        if len(part):
            best = max(best, float(((part[:, None] - points[None]) ** 2).sum(axis=2).max()))
    return float(np.sqrt(best))


def _hulls(voxels: NDArray[np.int32], axis: int) -> NDArray[np.int32]:
    """The corners of the convex hull of every section across ``axis``; the ends of a longest diameter are among them."""
    other = [i for i in range(3) if i != axis]
    ordered = voxels[np.lexsort((voxels[:, other[1]], voxels[:, other[0]], voxels[:, axis]))]
    sections = np.split(ordered, np.flatnonzero(np.diff(ordered[:, axis])) + 1)
    return np.concatenate([section[_corners(section[:, other].tolist())] for section in sections])


def _corners(points: list[list[int]]) -> list[int]:
    """Which of the points, ordered by their coordinates, are corners of their convex hull (Andrew's monotone chain)."""
    kept = set[int]()
    for order in (range(len(points)), range(len(points) - 1, -1, -1)):
        chain: list[int] = []
        for i in order:
            while len(chain) > 1 and _turn(points[chain[-2]], points[chain[-1]], points[i]) <= 0:
                chain.pop()
            chain.append(i)
        kept.update(chain)
    return sorted(kept)


def _turn(a: list[int], b: list[int], c: list[int]) -> int:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
