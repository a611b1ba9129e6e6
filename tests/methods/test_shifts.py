"""Reconstruction shifts: their place, their kinds, and that nothing else changes."""

import pytest
import torch
from torch import Tensor

from reshift.methods.detector import Step
from reshift.methods.reshift.shifts import SOURCES, Source, anatomy, offset, random_blob, random_blobs, shift

SIZE = 32


def step(seed: int = 0) -> Step:
    return Step(torch.Generator().manual_seed(seed))


def heads(count: int = 6) -> Tensor:
    """Grey discs on black with a black hole, and noise in the grey."""
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    disc = ((y - 16) ** 2 + (x - 16) ** 2) < 12**2
    image = torch.where(disc, 0.2 + 0.1 * torch.randn(count, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(9)), -1.0)
    image[..., 14:17, 14:17] = -1.0
    return image


def test_anatomy_has_something_bright_on_all_four_sides() -> None:
    x = torch.where(torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(1)) > 0.8, 0.0, -1.0)
    found = anatomy(x)
    for b in range(2):
        bright = x[b, 0] > -0.97
        for i in range(9):
            for j in range(9):
                rays = (bright[: i + 1, j], bright[i:, j], bright[i, : j + 1], bright[i, j:])
                assert bool(found[b, 0, i, j]) == all(bool(ray.any()) for ray in rays)


def test_anatomy_keeps_dark_holes_and_leaves_out_the_background() -> None:
    inside = anatomy(heads(1))[0, 0]
    assert bool(inside[15, 15])
    assert not bool(inside[1, 1])
    assert not bool(inside[0].any())


def test_blobs_lie_inside_and_grow_with_their_radius() -> None:
    inside = anatomy(heads(64))
    small, large = (random_blob(inside, step(3), r, r) for r in (0.05, 0.3))
    assert float(small.min()) >= 0.0
    assert float(large.max()) <= 1.0
    assert float(large.sum()) > 4 * float(small.sum())
    centres = small.flatten(1).argmax(1)
    assert float(inside.flatten(1).gather(1, centres[:, None]).mean()) > 0.9
    assert float(random_blobs(inside, step(3), 0.05, 0.05, 4).sum()) > float(small.sum())


def test_blobs_depend_on_the_seed_and_differ_between_images() -> None:
    inside = torch.ones(2, 1, SIZE, SIZE)
    first = random_blob(inside, step(1), 0.1, 0.2)
    assert torch.equal(first, random_blob(inside, step(1), 0.1, 0.2))
    assert not torch.equal(first, random_blob(inside, step(2), 0.1, 0.2))
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_changes_images_and_stays_finite(name: str) -> None:
    x, other = heads(), heads().flip(-1) * 0.5
    found = SOURCES[name](x, other, step())
    assert found.shape == x.shape
    assert bool(torch.isfinite(found).all())
    assert float((found - x).abs().mean()) > 0.02


def test_each_source_does_what_its_name_says() -> None:
    x, other = heads(64), heads(64).roll(1, 0)
    assert torch.equal(SOURCES["swap"](x, other, step()), other)
    gained = SOURCES["gain"](x, other, step())
    assert torch.equal(gained[x == -1.0], x[x == -1.0])  # black stays black
    moved = (offset(x, other, step()) - x).mean((1, 2, 3))
    assert bool((moved > 0.1).any())
    assert bool((moved < -0.1).any())
    rough = SOURCES["texture"](x, other, step())
    assert float((rough - x)[:, :, 8:14, 8:14].std((2, 3)).std()) > 0.01  # some rougher than others
    toned = SOURCES["tone"](x, other, step())
    assert float((toned[:, :, 8:14, 8:14].std((2, 3)) < x[:, :, 8:14, 8:14].std((2, 3))).float().mean()) > 0.5  # towards one grey


def shifted(x: Tensor, sources: dict[str, Source], untouched: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    return shift(x, x.roll(1, 0), sources, step(seed), smallest=0.1, largest=0.2, most=2, untouched=untouched)


def test_only_the_blob_changes_and_only_visible_change_counts() -> None:
    x = heads(32)
    image, where, inside = shifted(x, {"white": lambda a, _o, _s: torch.ones_like(a)})
    assert float(image.max()) <= 1.0
    assert torch.equal(inside, anatomy(x))
    assert float((image - x).abs()[where < 1e-3].max()) < 0.1
    assert float((image - x)[where > 0.99].min()) > 0.11
    assert float(where[:, :, :2].max()) < 0.5  # the background is not anatomy
    same, nowhere, _ = shifted(x, {"same": lambda a, _o, _s: a})
    torch.testing.assert_close(same, x)
    assert float(nowhere.max()) < 0.01  # an unchanged pixel is not shifted


def test_some_images_stay_untouched_and_every_source_has_its_share() -> None:
    x = heads(300)
    image, where, _ = shifted(x, {"white": lambda a, _o, _s: torch.ones_like(a)}, untouched=0.3)
    still = (where.amax((1, 2, 3)) == 0.0).float().mean()
    assert 0.2 < float(still) < 0.4
    assert torch.equal(image[where.amax((1, 2, 3)) == 0.0], x[where.amax((1, 2, 3)) == 0.0])
    constants: dict[str, Source] = {str(v): lambda a, _o, _s, v=v: torch.full_like(a, v) for v in (-0.6, 0.9)}  # type: ignore[misc]
    image, where, _ = shifted(x, constants)
    brighter = ((image - x) * (where > 0.5)).sum((1, 2, 3)) > 0
    assert 0.4 < float(brighter.float().mean()) < 0.6


def test_no_tensor_value_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    x = heads(4)

    def refuse(*_args: object, **_named: object) -> None:
        raise AssertionError("a value was read")

    with monkeypatch.context() as patch:
        for name in ("item", "__bool__", "__float__", "__int__", "nonzero"):
            patch.setattr(Tensor, name, refuse)
        image, _, _ = shifted(x, dict(SOURCES))
    assert bool(torch.isfinite(image).all())
