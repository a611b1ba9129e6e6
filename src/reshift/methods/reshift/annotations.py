"""Burned-in text, caliper crosses and dotted lines, painted into training images so that a detector learns to pass over them.

Ultrasound archives have them in diseased images far more often than in normal ones: who has seen none calls every letter a
lesion, and a test set then rewards reading. Everything is drawn from ``step`` and decided by arithmetic, as in methods/shifts.py.
"""

import string
from typing import NamedTuple

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.detector import Step

HEIGHT, WIDTH = 16, 64  # of a mark, in pixels of a 128-pixel image
FINER = 4  # times as finely drawn, so that it can be scaled
CHARACTERS = string.ascii_letters + 4 * string.digits + "+-.:/%"


class Painted(NamedTuple):
    """``image (B, C, H, W)`` with marks on it, and ``where (B, 1, H, W)`` they are, 0 … 1."""

    image: Tensor
    where: Tensor


def drawn_marks(count: int = 96, seed: int = 0) -> Tensor:
    """Marks ``(count, 1, h, w)`` in 0 … 1: words, numbers, single crosses, dotted lines. The same for the same seed."""
    rng = np.random.default_rng(seed)
    marks = [_drawn(rng, kind) for kind in rng.choice(["word", "cross", "dots"], count, p=[0.6, 0.25, 0.15])]
    return torch.from_numpy(np.stack(marks)[:, None])


def _drawn(rng: np.random.Generator, kind: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    height, width = FINER * HEIGHT, FINER * WIDTH
    picture = PIL.Image.new("L", (width, height))
    draw, middle = PIL.ImageDraw.Draw(picture), height // 2
    if kind == "word":
        text = "".join(rng.choice(list(CHARACTERS), rng.integers(1, 9)))
        font = PIL.ImageFont.load_default(int(rng.integers(6, 12)) * FINER)
        draw.text((width // 2, middle), text, 255, font, anchor="mm")
    elif kind == "cross":
        arm, line = int(rng.integers(2, 6)) * FINER, FINER * int(rng.integers(1, 3))
        x = width // 2
        turned = rng.random() < 0.3
        ends = [(-arm, -arm, arm, arm), (-arm, arm, arm, -arm)] if turned else [(-arm, 0, arm, 0), (0, -arm, 0, arm)]
        for x0, y0, x1, y1 in ends:
            draw.line((x + x0, middle + y0, x + x1, middle + y1), 255, line)
    else:
        gap, dot = int(rng.integers(3, 6)) * FINER, FINER // 2 + 1
        for x in range(dot, width, gap):
            draw.ellipse((x - dot, middle - dot, x + dot, middle + dot), 255)
    return np.asarray(picture, dtype=np.float32) / 255.0


def paint(x: Tensor, marks: Tensor, step: Step, *, share: float, most: int = 3) -> Painted:
    """Paint up to ``most`` marks into a ``share`` of the images, anywhere, at any angle that text has: level or upright."""
    b, _, h, w = x.shape
    touched = (step.uniform(b, 1, 1, 1) < share).to(x.dtype)
    where = torch.zeros_like(x[:, :1])
    for i in range(most):
        chosen = marks[step.integers(0, len(marks) - 1, b)].to(x.dtype)  # (B, 1, h, w)
        wanted = touched * (step.uniform(b, 1, 1, 1) < (1.0 if i == 0 else 0.5)).to(x.dtype)
        cover = _placed(chosen, step, h, w) * wanted * (0.7 + 0.3 * step.uniform(b, 1, 1, 1))
        tone = 1.0 - 0.8 * step.uniform(b, 1, 1, 1)  # white to grey
        x, where = x * (1.0 - cover) + tone * cover, torch.maximum(where, cover)
    return Painted(x, where)


def _placed(mark: Tensor, step: Step, h: int, w: int) -> Tensor:
    """Each mark somewhere on its own ``(1, h, w)`` canvas, 0.6 to 1.6 times its size."""
    b = len(mark)
    zoom, upright = 0.6 + step.uniform(b), (step.uniform(b) < 0.15).to(mark.dtype)
    cx, cy = 2.0 * step.uniform(b) - 1.0, 2.0 * step.uniform(b) - 1.0
    across, down = 128.0 / (WIDTH * zoom), 128.0 / (HEIGHT * zoom)
    level, nothing = 1.0 - upright, torch.zeros_like(zoom)
    rows = [
        torch.stack([across * level + nothing, across * upright, -across * (cx * level + cy * upright)], 1),
        torch.stack([-down * upright, down * level, -down * (cy * level - cx * upright)], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), [b, 1, h, w], align_corners=False)
    # Four times as fine as the image: averaging first keeps thin strokes from falling between the pixels.
    return F.grid_sample(F.avg_pool2d(mark, FINER // 2), grid, align_corners=False)
