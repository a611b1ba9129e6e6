"""Annotations: how painted marks look, that nothing else changes, that they are not shifts, and how text is removed."""

from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
import pytest
import torch
from torch import Tensor

from reshift.methods.detector import Step
from reshift.methods.reshift import method as module
from reshift.methods.reshift.annotations import HEIGHT, OVERSAMPLING, WIDTH, draw_marks, paint_marks
from reshift.methods.reshift.method import Reshift
from reshift.methods.reshift.settings import ReshiftSettings
from reshift.methods.reshift.shifts import Shifted, shift

SIZE = 64
SMALL: dict[str, Any] = {
    "steps": 2, "folds": 1, "widths": (8, 8, 8, 8), "denoising_widths": (8, 8, 8), "bank": 512, "sample": 4000,
    "sources": ("offset",), "mirror": False,
}  # fmt: skip


def step(seed: int = 0) -> Step:
    return Step(torch.Generator().manual_seed(seed))


def tissue(count: int = 4, seed: int = 0, size: int = SIZE) -> Tensor:
    """Dim and smooth, so that a stroke shows."""
    coarse = torch.rand(count, 1, 5, 5, generator=torch.Generator().manual_seed(seed)) - 0.9
    return torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")


def test_marks_are_strokes_on_black() -> None:
    marks = draw_marks(60)
    assert marks.shape == (60, 1, OVERSAMPLING * HEIGHT, OVERSAMPLING * WIDTH)
    assert float(marks.min()) == 0.0
    covered = (marks > 0.5).flatten(1).float().mean(1)
    assert bool((covered > 0.001).all())
    assert bool((covered < 0.35).all())
    assert len({tuple(mark.flatten().tolist()) for mark in marks}) > 40
    assert torch.equal(marks, draw_marks(60))
    assert not torch.equal(marks, draw_marks(60, seed=1))


def test_only_marked_pixels_change_and_become_brighter() -> None:
    x = tissue(16)
    image, where = paint_marks(x, draw_marks(), step(), share=1.0)
    assert torch.equal(image[where.expand_as(image) == 0], x[where.expand_as(x) == 0])
    strong = where > 0.5
    assert int(strong.sum()) > 50
    assert bool((image[strong] > x[strong]).all())
    assert float(image.max()) <= 1.0
    assert int((where.flatten(1).amax(1) > 0).sum()) >= 12  # some lie outside the image
    assert float((where > 0).float().mean()) < 0.2


def test_a_share_of_the_images_is_marked_alike_in_all_channels() -> None:
    x = tissue(64).expand(-1, 3, -1, -1)
    assert torch.equal(paint_marks(x, draw_marks(), step(), share=0.0).image, x)
    image, where = paint_marks(x, draw_marks(), step(), share=0.5)
    marked = (where.flatten(1).amax(1) > 0).float().mean()
    assert 0.25 < float(marked) < 0.6
    assert torch.equal(image[:, 0], image[:, 2])


def test_a_mark_is_not_a_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    """The discriminator sees marks, and its target does not contain them, neither inside the anatomy nor outside."""
    torch.manual_seed(0)
    model = Reshift(ReshiftSettings(**SMALL, features="off", marks=1.0), SIZE, 1)
    found = list[Shifted]()
    shown = list[Tensor]()

    def spy(*args: Any, **named: Any) -> Shifted:
        found.append(shift(*args, **named))
        return found[0]

    monkeypatch.setattr(module, "shift", spy)
    net: Any = model.witnesses[0]
    net.nets.members[0].register_forward_pre_hook(lambda _net, args: shown.append(args[0]))
    x = tissue(8)
    x[:, :, :20] = -1.0
    loss = float(model.stages()[0].objectives[0].loss(x, step())["loss"].detach())
    marked = (shown[0] - found[0].image).abs() > 0.05
    assert bool(marked.any())
    assert bool(marked[found[0].inside == 0].any())  # some lie in the dark above
    target = found[0].target
    assert float(target.max()) <= 1.0
    logits = net.nets.members[0](shown[0], [])
    errors = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none").detach()
    without = float((errors * found[0].inside).sum() / found[0].inside.sum())
    assert loss == pytest.approx(without, rel=0.2)
    assert loss != without  # what lies beside the anatomy takes part


@pytest.mark.parametrize("size", [64, 128, 256])
def test_thin_bright_lines_are_removed_and_large_regions_stay(size: int) -> None:
    model = Reshift(ReshiftSettings(**SMALL, features="off"), size, 1)
    x = tissue(1, size=size)
    width = max(1, round(size / 128))  # of a letter's line
    lesion, letter, line = x.clone(), x.clone(), x.clone()
    lesion[..., size // 4 : size // 2, size // 4 : size // 2] = 0.9
    letter[..., size // 4 : size // 2, size // 4 : size // 4 + width] = 0.9
    line[..., size // 4 : size // 2, size // 4 : size // 4 + width] += 0.3  # no brighter than anatomy
    assert torch.equal(model._remove_text(x), x)
    assert torch.equal(model._remove_text(lesion), lesion)
    assert torch.equal(model._remove_text(line), line)
    assert float((model._remove_text(letter) - x).abs().max()) < 0.2
    assert torch.equal(Reshift(ReshiftSettings(**SMALL, features="off", strokes=0.0), size, 1)._remove_text(letter), letter)


@pytest.mark.parametrize("size", [128, 256])
def test_wider_lines_are_removed_only_within_words(size: int) -> None:
    """A thick corner next to other letters belongs to a letter; alone it may be a vessel or a lesion."""
    model, unit = Reshift(ReshiftSettings(**SMALL, features="off"), size, 1), size // 128
    x = tissue(1, size=size)
    alone, word = x.clone(), x.clone()
    for image in (alone, word):
        image[..., 60 * unit : 64 * unit, 60 * unit : 64 * unit] = 0.9  # too wide for a stroke
    for column in (52, 55, 58, 66, 69):
        word[..., 58 * unit : 66 * unit, column * unit : (column + 1) * unit] = 0.9
    assert torch.equal(model._remove_text(alone), alone)
    assert float((model._remove_text(word) - x).abs().max()) < 0.2
    large = x.clone()
    large[..., 40 * unit : 60 * unit, 40 * unit : 90 * unit] = 0.9
    assert torch.equal(model._remove_text(large), large)


def test_small_text_changes_the_distance_little() -> None:
    """Without the filter, the same memory finds a word in small type far from all its patches."""
    x = tissue(4, seed=3, size=128) - 0.1
    canvas = PIL.Image.new("L", (128, 128))
    PIL.ImageDraw.Draw(canvas).text((30, 60), "LEFT BREAST", 255, PIL.ImageFont.load_default_imagefont())
    letters = torch.from_numpy(np.asarray(canvas).copy()).expand_as(x) > 0
    far = []
    for strokes in (0.0, 0.5):
        torch.manual_seed(0)
        small = SMALL | {"witnesses": ("memory",)}
        model = Reshift(ReshiftSettings(**small, features=("efficientnet-lite0",), strokes=strokes, blur=0.0), 128, 1).eval()
        memory: Any = model.witnesses[0]
        with torch.no_grad():
            model._fill_memory(memory, [tissue(12, seed=9, size=128) - 0.1])
            far.append(float(memory(model._see(torch.where(letters, 0.9, x)))[letters].mean()))
    assert far[1] < 0.5 * far[0]
