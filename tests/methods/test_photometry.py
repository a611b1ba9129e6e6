"""What another scanner may do to an image: it stays an image, and the same for every rank and batch."""

import pytest
import torch
from small_reshift import build, images, step
from torch import Tensor

from reshift.methods.detector import Step
from reshift.methods.reshift import method as module
from reshift.methods.reshift.photometry import blur_and_noise, mild_photometry, strong_photometry
from reshift.methods.reshift.shifts import anatomy


@pytest.mark.parametrize("change", [mild_photometry, strong_photometry])
def test_images_stay_in_range_and_change(change: object) -> None:
    assert callable(change)
    x = images(8)
    found = change(x, step())
    assert found.shape == x.shape
    assert float(found.min()) >= -1.0
    assert float(found.max()) <= 1.0
    assert not torch.allclose(found, x, atol=0.02)
    assert torch.equal(found, change(x, step()))


def test_half_of_the_images_get_noise_and_some_blur_after_a_shift() -> None:
    x = images(400)
    inside = anatomy(x)
    found = blur_and_noise(x, inside, 0.2, step())
    changed = (found != x).flatten(1).any(1)
    assert 0.4 < float(changed.float().mean()) < 0.6
    assert float(found.abs().max()) <= 1.0
    noise = (found - x)[changed]
    spread = noise[:, :, 8:].std((1, 2, 3))  # inside
    assert 0.05 < float(spread.median()) < 0.15
    assert float(noise[:, :, :3].abs().max()) < 1e-6  # black above the head stays black; a blur reaches one row further


def test_a_rank_draws_what_one_process_would() -> None:
    x = images(4)
    whole = blur_and_noise(x, anatomy(x), 0.2, step())
    second = Step(torch.Generator().manual_seed(0), rank=1, world=2)
    assert torch.equal(blur_and_noise(x[2:], anatomy(x[2:]), 0.2, second), whole[2:])


def test_it_follows_the_shifts_and_is_left_out_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[Tensor, float]]()

    def spy(image: Tensor, _inside: Tensor, most: float, _step: Step) -> Tensor:
        seen.append((image, most))
        return image

    monkeypatch.setattr(module, "blur_and_noise", spy)
    x = images(4)
    for most in (0.0, 0.3):
        model = build(features="off", marks=0.0, untouched=0.0, late_noise=most, photometry="mild")
        example = model._shifted(x, x.roll(1, 0), step())
    [(image, most)] = seen
    assert most == 0.3
    assert torch.equal(image, example.image)  # what it is given is shifted already
