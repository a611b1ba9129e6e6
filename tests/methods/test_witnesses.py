"""The witnesses of the default method, each by itself: what it learns from and what it says."""

import math
from typing import Any

import pytest
import torch
from small_reshift import SIZE, build, filled, images, step

from reshift.methods.ops.filters import erode, median_filter
from reshift.methods.reshift.denoising import Denoiser, window_and_block
from reshift.methods.reshift.shifts import anatomy
from reshift.methods.reshift.tail import LEVELS, Tail
from reshift.nets.dense import DenseUNet


@pytest.mark.parametrize("grain", [1, 2])
def test_the_network_takes_image_and_features(grain: int) -> None:
    torch.manual_seed(0)
    net = DenseUNet(1, (8, 16, 16), (5, 7), grain=grain, out=3)
    x, maps = torch.randn(2, 1, 16, 16), [torch.randn(2, 5, 9, 9), torch.randn(2, 7, 3, 3)]
    out = net(x, maps)
    assert out.shape == (2, 3, 16, 16)
    assert not torch.equal(out, net(x, [maps[0], maps[1] + 1.0]))
    assert not torch.equal(out, net(x, [maps[0] + 1.0, maps[1]]))
    for pixel in range(4):  # no pixel is lost in a coarser grain
        changed = x.clone()
        changed[..., 4 + pixel // 2, 4 + pixel % 2] += 1.0
        assert not torch.equal(out, net(changed, maps))
    with pytest.raises(ValueError, match="2 feature maps need at least 3 widths"):
        DenseUNet(1, (8, 16), (5, 7))


def test_a_denoiser_learns_to_remove_noise_inside_the_anatomy_only() -> None:
    model = build(witnesses=("denoising",), features="off")
    example = model._noisy(images(), step())
    changed = example.image != example.target
    assert bool(changed.any())
    assert not bool(changed[example.inside == 0].any())
    witness: Any = model.witnesses[0]
    outputs = [net(example.image[own], ()) for net, own in zip(witness.nets.members, (slice(2, 4), slice(0, 2)), strict=True)]
    targets = [(example.target[own], example.inside[own] > 0) for own in (slice(2, 4), slice(0, 2))]  # each without its fold
    slow = [float((out - x)[inside].square().mean().detach()) for out, (x, inside) in zip(outputs, targets, strict=True)]
    assert float(witness.loss(example, ()).detach()) == pytest.approx(sum(slow) / 2, rel=1e-4)


def test_the_denoiser_s_map_is_the_filtered_change_without_the_rim() -> None:
    model = build(witnesses=("denoising",), features="off", flips=False)
    witness, x = model.witnesses[0], images(2)
    assert isinstance(witness, Denoiser)
    with torch.no_grad():
        out = torch.stack([net(x, ()) for net in witness.nets.members]).mean(0)
        window, _ = window_and_block(SIZE)
        expected = median_filter((out - x).abs(), window) * erode(anatomy(x), window)
        torch.testing.assert_close(witness(model._see(x)), expected)
        torch.testing.assert_close(model.pseudo_healthy(x), out.clamp(-1.0, 1.0), rtol=1e-4, atol=1e-5)


def test_the_tail_is_the_rarity_of_brightness() -> None:
    model = filled(witnesses=("plain",), features="off", polarity="bright", folds=1)
    tail, x = model.witnesses[-1], images(1, seed=9)
    assert isinstance(tail, Tail)
    x[:, :, 20:26, 20:26] = 1.0  # brighter than any normal pixel
    with torch.no_grad():
        found = tail(model._see(x))
    assert float(found[0, 0, 22, 22]) == pytest.approx(math.log10(LEVELS + 1.0), rel=1e-4)
    assert float(found[0, 0, 8:16].mean()) < 1.0  # one in ten, on average, is about 0.43
    dark = filled(witnesses=("plain",), features="off", polarity="dark", folds=1).witnesses[-1]
    with torch.no_grad():
        assert float(dark(model._see(x))[0, 0, 22, 22]) < 0.01


def test_with_its_mirror_image_a_change_on_one_side_shows_on_the_other() -> None:
    x = images(1)
    changed = x.clone()
    changed[:, :, 10:14, :4] = 0.9
    far = slice(SIZE - 4, SIZE)  # of the first convolution at least, whose reach is one pixel
    with torch.no_grad():
        for mirror in (False, True):
            witness: Any = build(features="off", mirror=mirror).witnesses[0]
            first = witness.nets.members[0].down[0][0]
            before, after = (first(witness._input(image))[..., far] for image in (x, changed))
            assert torch.equal(before, after) == (not mirror)


def test_a_new_site_s_patches_join_the_memory_and_set_its_normalisation() -> None:
    model = filled()
    memory: Any = model.witnesses[2]
    elsewhere = images(8, seed=50).roll(8, 2) * 0.3
    before, bank = model.fusion.centre.clone(), memory.bank.clone()
    with torch.no_grad():
        far = memory(model._see(elsewhere), without=1).mean()
        assert model.adapt([(elsewhere[:4], 0), (elsewhere[4:], 1)])
        near = memory(model._see(elsewhere), without=1).mean()
    assert float(near) < 0.9 * float(far)
    assert memory.bank.shape == bank.shape
    kept = (torch.cdist(memory.bank[0], bank[0]).amin(1) < 1e-6).float().mean()
    assert 0.0 < float(kept) < 1.0  # patches of both sites
    assert not torch.equal(model.fusion.centre, before)
    single = filled(folds=1)
    assert not single.adapt([(elsewhere, 0)])  # it could not leave out what it has just seen
