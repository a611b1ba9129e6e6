"""Burned-in annotations: text, caliper crosses and dotted lines. Remove them from images, paint them into training images.

Ultrasound archives have them in diseased images far more often than in normal ones. A detector that has seen none calls
every letter a lesion, and a test set then rewards reading. Painting draws all random numbers from ``step`` and never
branches on a tensor value, as in shifts.py.
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
from reshift.methods.ops.filters import opening

HEIGHT, WIDTH = 16, 64  # of a mark, in pixels of a 128-pixel image
OVERSAMPLING = 4  # marks are drawn this much finer, so that they can be scaled
CHARACTERS = string.ascii_letters + 4 * string.digits + "+-.:/%"


class Painted(NamedTuple):
    """``image (B, C, H, W)`` with marks on it, and ``cover (B, 1, H, W)``: how much of each pixel they cover, 0 … 1."""

    image: Tensor
    cover: Tensor


def remove_text(x: Tensor, contrast: float, line: int = 1) -> Tensor:
    """Replace lines of ``line`` pixels that are brighter than their surroundings by more than ``contrast``.

    Where lines are as close as in a word, lines of twice the width are removed, too: letters touch and have thick corners.
    Elsewhere such lines are anatomy.
    """
    behind, behind_wide = opening(x, 2 * line + 1), opening(x, 4 * line + 1)
    thin = x - behind > contrast
    height, width = 8 * line - 1, 16 * line - 1  # of a short word in small type
    count = F.avg_pool2d(thin.to(x.dtype), (height, width), 1, (height // 2, width // 2), divisor_override=1)
    word = (count >= 12 * line**2) & (x - behind_wide > contrast)
    return torch.where(word, behind_wide, torch.where(thin, behind, x))


def draw_marks(count: int = 96, seed: int = 0) -> Tensor:
    """Marks ``(count, 1, h, w)`` in 0 … 1: words, numbers, single crosses, dotted lines. The same for the same seed."""
    rng = np.random.default_rng(seed)
    marks = [_draw_mark(rng, kind) for kind in rng.choice(["word", "cross", "dots"], count, p=[0.6, 0.25, 0.15])]
    return torch.from_numpy(np.stack(marks)[:, None])


def _draw_mark(rng: np.random.Generator, kind: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    height, width = OVERSAMPLING * HEIGHT, OVERSAMPLING * WIDTH
    canvas = PIL.Image.new("L", (width, height))
    draw, middle = PIL.ImageDraw.Draw(canvas), height // 2
    if kind == "word":
        text = "".join(rng.choice(list(CHARACTERS), rng.integers(1, 9)))
        font = PIL.ImageFont.load_default(int(rng.integers(6, 12)) * OVERSAMPLING)
        draw.text((width // 2, middle), text, 255, font, anchor="mm")
    elif kind == "cross":
        arm, line = int(rng.integers(2, 6)) * OVERSAMPLING, OVERSAMPLING * int(rng.integers(1, 3))
        x = width // 2
        diagonal = rng.random() < 0.3
        ends = [(-arm, -arm, arm, arm), (-arm, arm, arm, -arm)] if diagonal else [(-arm, 0, arm, 0), (0, -arm, 0, arm)]
        for x0, y0, x1, y1 in ends:
            draw.line((x + x0, middle + y0, x + x1, middle + y1), 255, line)
    else:
        gap, dot = int(rng.integers(3, 6)) * OVERSAMPLING, OVERSAMPLING // 2 + 1
        for x in range(dot, width, gap):
            draw.ellipse((x - dot, middle - dot, x + dot, middle + dot), 255)
    return np.asarray(canvas, dtype=np.float32) / 255.0


def paint_marks(x: Tensor, marks: Tensor, step: Step, *, share: float, most: int = 3) -> Painted:
    """Paint up to ``most`` marks into a ``share`` of the images, at random places, horizontal or vertical."""
    b, _, h, w = x.shape
    painted = (step.uniform(b, 1, 1, 1) < share).to(x.dtype)
    total = torch.zeros_like(x[:, :1])
    for i in range(most):
        chosen = marks[step.integers(0, len(marks) - 1, b)].to(x.dtype)  # (B, 1, h, w)
        wanted = painted * (step.uniform(b, 1, 1, 1) < (1.0 if i == 0 else 0.5)).to(x.dtype)
        cover = _place_marks(chosen, step, h, w) * wanted * (0.7 + 0.3 * step.uniform(b, 1, 1, 1))
        tone = 1.0 - 0.8 * step.uniform(b, 1, 1, 1)  # white to grey
        x, total = x * (1.0 - cover) + tone * cover, torch.maximum(total, cover)
    return Painted(x, total)


def _place_marks(marks: Tensor, step: Step, h: int, w: int) -> Tensor:
    """Put each mark on its own ``(1, h, w)`` canvas, 0.6 to 1.6 times its size."""
    b = len(marks)
    zoom, upright = 0.6 + step.uniform(b), (step.uniform(b) < 0.15).to(marks.dtype)
    cx, cy = 2.0 * step.uniform(b) - 1.0, 2.0 * step.uniform(b) - 1.0
    across, down = 128.0 / (WIDTH * zoom), 128.0 / (HEIGHT * zoom)
    level = 1.0 - upright
    rows = [
        torch.stack([across * level, across * upright, -across * (cx * level + cy * upright)], 1),
        torch.stack([-down * upright, down * level, -down * (cy * level - cx * upright)], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), [b, 1, h, w], align_corners=False)
    # Marks are finer than the image: averaging first keeps thin strokes from falling between the pixels.
    return F.grid_sample(F.avg_pool2d(marks, OVERSAMPLING // 2), grid, align_corners=False)
