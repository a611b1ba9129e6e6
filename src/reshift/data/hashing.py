"""Find near-duplicates: a 256-bit perceptual hash of each image, and groups of images with similar hashes.

The hash holds the signs of the 256 lowest frequencies (the DCT of a 64×64 copy). It ignores size, brightness, contrast,
noise and JPEG quality. Flipped, rotated or differently cropped copies get other hashes.
"""

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from reshift.data.prepare import resize

BITS = 256
WORDS = BITS // 64
NEAR = 24  # bits that may differ in two copies of one image
_SIDE, _FREQUENCIES = 64, 16
_CHUNK = 1 << 18  # pairs compared at once


def perceptual_hash(pixels: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Hash a grey image ``(H, W)`` of any size to 256 bits, ``(4,)``."""
    plane = np.asarray(pixels, dtype=np.float32)
    if plane.ndim != 2:
        raise ValueError(f"a hash takes one grey plane (H, W), not {plane.shape}")
    small = resize(plane, _SIDE).astype(np.float64)
    basis = _dct_basis()  # (16, 64)
    spectrum = (basis @ small @ basis.T).ravel()  # (256,), the mean first
    bits = spectrum > np.median(spectrum[1:])
    bits[0] = False  # the mean is only the brightness
    return np.packbits(bits).view(np.uint64)


def distances(hashes: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Count the bits that differ, row by row: ``(N, 4)`` and ``(N, 4)`` or ``(4,)`` → ``(N,)``."""
    differ = hashes ^ other
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.asarray(np.bitwise_count(differ).sum(-1, dtype=np.int64))
    return np.asarray(_bit_counts()[differ.view(np.uint8)].sum(-1))


def near_duplicates(hashes: NDArray[np.uint64], distance: int = NEAR) -> list[list[int]]:
    """Group the rows of ``(N, 4)`` that are linked by steps of at most ``distance`` bits; single rows are left out.

    The 256 bits are split into ``distance // 2 + 1`` bands. Two hashes within ``distance`` differ in at most one bit of some
    band, so they agree in that band without that bit. Sorting by each band without each of its bits finds every pair.
    """
    _check(hashes, distance)
    if not len(hashes):
        return []
    distinct, owner = np.unique(hashes, axis=0, return_inverse=True)  # equal hashes need no comparison
    bits = np.unpackbits(distinct.view(np.uint8), axis=1)  # (N, 256)
    codes = np.random.default_rng(0).integers(1, 2**63, BITS).astype(np.uint64)
    bands, root = distance // 2 + 1, np.arange(len(distinct))
    for first in range(bands):
        band = bits[:, first::bands] * codes[first::bands]  # a different number for every bit that is set
        whole = np.bitwise_xor.reduce(band, axis=1)
        for left_out in band.T:
            for pairs in _candidates(whole ^ left_out, root):
                _link(root, pairs[distances(distinct[pairs[:, 0]], distinct[pairs[:, 1]]) <= distance])
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(root[owner.ravel()].tolist()):
        groups.setdefault(group, []).append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def _candidates(keys: NDArray[np.uint64], root: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Pairs of rows with the same key that are not in one group yet, ``(P, 2)``, in chunks."""
    order = np.argsort(keys)
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    sizes, groups = np.diff(starts, append=len(order)), root[order]
    mixed = np.minimum.reduceat(groups, starts) < np.maximum.reduceat(groups, starts)  # only these have pairs to link
    order, sizes = order[np.repeat(mixed, sizes)], sizes[mixed]
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # row r of a bucket pairs with r rows
    ends, begin = np.cumsum(ranks), 0
    while begin < len(order):
        done = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _CHUNK, side="right")))
        counts = ranks[begin:end]
        later = np.repeat(np.arange(begin, end), counts)
        back = np.arange(len(later)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
        pairs = np.stack([order[later - back], order[later]], axis=1)
        yield pairs[root[pairs[:, 0]] != root[pairs[:, 1]]]
        begin = end


def _link(root: NDArray[np.int64], pairs: NDArray[np.int64]) -> None:
    """Join the groups of each pair, in place; every row points at the first row of its group, before and after."""
    while len(pairs):
        ends = root[pairs]  # (P, 2)
        np.minimum.at(root, ends.ravel(), np.repeat(ends.min(1), 2))
        while (root != root[root]).any():
            root[:] = root[root]
        pairs = pairs[root[pairs[:, 0]] != root[pairs[:, 1]]]


def _check(hashes: NDArray[np.uint64], distance: int) -> None:
    if hashes.dtype != np.uint64 or hashes.ndim != 2 or hashes.shape[1] != WORDS:
        raise ValueError(f"hashes are uint64 ({{N}}, {WORDS}), not {hashes.dtype} {hashes.shape}")
    if not 0 <= distance < BITS:
        raise ValueError(f"a distance is 0 to {BITS - 1} bits, not {distance}")


@cache
def _dct_basis() -> NDArray[np.float64]:
    """The lowest frequencies of the DCT-II, ``(16, 64)``."""
    n, k = np.arange(_SIDE), np.arange(_FREQUENCIES)
    return np.asarray(np.cos(np.pi * (2 * n + 1) * k[:, None] / (2 * _SIDE)))


@cache
def _bit_counts() -> NDArray[np.int64]:
    """How many bits of each byte are set."""
    return np.asarray(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(1, dtype=np.int64))
