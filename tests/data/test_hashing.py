"""Near-duplicates: copies of an image are found, other images are not, and the fast search misses no pair."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from helpers import noise
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from reshift.data.hashing import BITS, NEAR, distances, near_duplicates, perceptual_hash
from reshift.data.phantom import draw

Hashes = NDArray[np.uint64]


def brute(hashes: Hashes, distance: int) -> list[list[int]]:
    """Every pair, one by one; then rows linked by any chain of pairs."""
    root = list(range(len(hashes)))
    for i in range(len(hashes)):
        for j in range(i):
            if bin(int.from_bytes(hashes[i].tobytes()) ^ int.from_bytes(hashes[j].tobytes())).count("1") <= distance:
                low, high = sorted((root[i], root[j]))
                root = [low if r == high else r for r in root]
    groups = [[i for i, r in enumerate(root) if r == first] for first in range(len(root))]
    return [rows for rows in groups if len(rows) > 1]


def scattered(seed: int, centres: int, copies: int, most: int) -> Hashes:
    """``copies`` of each of ``centres`` random hashes, each with up to ``most`` bits flipped; in random order."""
    rng = np.random.default_rng(seed)
    bits = np.repeat(rng.integers(0, 2, (centres, BITS), dtype=np.uint8), copies, axis=0)
    for row in bits:
        row[rng.permutation(BITS)[: rng.integers(0, most + 1)]] ^= 1
    return np.packbits(rng.permutation(bits), axis=1).view(np.uint64)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 99), copies=st.integers(1, 6), distance=st.sampled_from([0, 1, 2, 3, 7, NEAR, 25, 60, 127, 255]))
def test_the_fast_search_finds_what_all_pairs_find(seed: int, copies: int, distance: int) -> None:
    hashes = scattered(seed, 6, copies, min(distance, 120))
    assert near_duplicates(hashes, distance) == brute(hashes, distance)


def test_many_equal_hashes() -> None:
    hashes = np.concatenate([scattered(0, 1, 3000, 8), np.zeros((3000, 4), np.uint64)])
    assert [len(rows) for rows in near_duplicates(hashes)] == [3000, 3000]


def test_empty_and_invalid_hashes() -> None:
    assert near_duplicates(np.zeros((0, 4), np.uint64)) == []
    assert near_duplicates(np.zeros((1, 4), np.uint64)) == []
    for hashes, distance in (
        (np.zeros((2, 4), np.int64), 1),
        (np.zeros((2, 1), np.uint64), 1),
        (np.zeros((2, 4), np.uint64), 256),
    ):
        with pytest.raises(ValueError, match=r"uint64|distance"):
            near_duplicates(hashes, distance)  # type: ignore[arg-type]  # on purpose


def test_distances_with_and_without_the_popcount_of_numpy_2(monkeypatch: pytest.MonkeyPatch) -> None:
    one = np.array([[0, 1, 3, 2**63]], np.uint64)
    assert distances(one, np.zeros(4, np.uint64)).tolist() == [4]
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert distances(one, np.zeros(4, np.uint64)).tolist() == [4]


def brain(subject: int) -> NDArray[np.float32]:
    """A brain phantom, (128, 128)."""
    return draw("brain", subject, 1, abnormal=False).pixels.astype(np.float32)


def jpeg(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "JPEG", quality=50)
    return np.asarray(Image.open(buffer), dtype=np.float32)


def half(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(Image.fromarray(pixels).resize((64, 64), Image.Resampling.BILINEAR))


def grainy(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.clip(pixels + np.random.default_rng(0).normal(0, 5, pixels.shape), 0, 255).astype(np.float32)


def dimmer(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    return pixels * 0.6 + 20


@pytest.mark.parametrize("change", [jpeg, half, grainy, dimmer])
def test_a_copy_is_near(change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> None:
    originals = [brain(i) for i in range(8)]
    for pixels in originals:
        assert distances(perceptual_hash(pixels)[None], perceptual_hash(change(pixels)))[0] <= NEAR
    hashes = np.stack([perceptual_hash(pixels) for pixels in [*originals, *map(change, originals)]])
    assert near_duplicates(hashes) == [[i, i + 8] for i in range(8)]


def test_a_mirror_image_is_another_image() -> None:
    pixels = noise(3, 64, 96).astype(np.float32)
    assert distances(perceptual_hash(pixels)[None], perceptual_hash(pixels[:, ::-1]))[0] > NEAR


def test_the_hash_takes_one_plane() -> None:
    assert perceptual_hash(brain(0)).shape == (4,)
    with pytest.raises(ValueError, match="one grey plane"):
        perceptual_hash(np.zeros((8, 8, 3), np.float32))
