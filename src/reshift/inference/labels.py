"""Words on overlays: score and p-value, the colour bar with its threshold, the notice of an unlike image; and montages."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reshift.inference.acquisition import DESCRIPTIONS
from reshift.inference.calibration import Calibration
from reshift.inference.overlay import grey, heat_colours, overlay

if TYPE_CHECKING:
    from PIL.Image import Image

LEGIBLE = 256  # pixels; smaller images are enlarged by a whole number before words are written on them
STRIP = 44  # pixels under a montage, for its legend
UNLIKE = "unlike training images"  # on a small tile; a picture of its own says in what
Numbers = Mapping[str, Any]  # of a record: score, p_value, flag, unlike, differs


def draw_overlay(
    pixels: NDArray[np.float32], heatmap: NDArray[np.float32], numbers: Numbers, calibration: Calibration,
    window: tuple[float, float] | None = None, *, labels: bool = False,
) -> NDArray[np.uint8]:  # fmt: skip
    """The overlay of an image, with ``labels`` if they are wanted.

    The heat-map of an image unlike the training images says nothing about disease: it is not drawn, and a notice says so.
    """
    shown = blend(pixels, heatmap, numbers, calibration, window)
    if not (labels or numbers["unlike"]):
        return shown
    canvas = _legible(shown)
    if labels:
        _write(canvas, _verdict(numbers), top=True)
    if numbers["unlike"]:
        how = " and ".join(DESCRIPTIONS[part] for part in numbers["differs"] or ()) or "its acquisition"
        _write(canvas, f"Unlike the training images in {how}: no heat-map is drawn.")
    else:
        _colour_bar(canvas, calibration.reference.pixel_threshold, calibration.heat_scale)
    return np.asarray(canvas)


def blend(
    pixels: NDArray[np.float32], heatmap: NDArray[np.float32], numbers: Numbers, calibration: Calibration,
    window: tuple[float, float] | None = None,
) -> NDArray[np.uint8]:  # fmt: skip
    """The image with what its heat-map has above the threshold, or plain if it is unlike the training images."""
    if numbers["unlike"]:
        return np.repeat(grey(pixels, window)[:, :, None], 3, axis=2)
    return overlay(pixels, heatmap, calibration.reference.pixel_threshold, calibration.heat_scale, window)


def _verdict(numbers: Numbers) -> str:
    known = [f"score {numbers['score']:.4g}", f"p = {numbers['p_value']:.2g}"]
    return "  ".join(known + ["FLAGGED"] * bool(numbers["flag"]))


def _legible(rgb: NDArray[np.uint8]) -> "Image":
    import PIL.Image

    factor = max(1, math.ceil(LEGIBLE / min(rgb.shape[:2])))
    return PIL.Image.fromarray(rgb.repeat(factor, axis=0).repeat(factor, axis=1))


def _font(canvas: "Image") -> Any:
    import PIL.ImageFont

    return PIL.ImageFont.load_default(size=max(12, min(canvas.size) // 28))


def _write(canvas: "Image", text: str, *, top: bool = False) -> None:
    """Text on a dark band along the upper or lower edge, broken into lines that fit."""
    import PIL.ImageDraw

    font, draw, lines = _font(canvas), PIL.ImageDraw.Draw(canvas, "RGBA"), [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and draw.textlength(longer, font=font) > canvas.width - 8:
            lines.append(word)
        else:
            lines[-1] = longer
    step = sum(font.getmetrics()) + 1
    upper = 0 if top else canvas.height - step * len(lines) - 4
    draw.rectangle((0, upper, canvas.width, upper + step * len(lines) + 4), fill=(0, 0, 0, 170))
    draw.multiline_text((4, upper + 2), "\n".join(lines), font=font, fill=(255, 255, 255), spacing=step - font.size)


def _colour_bar(canvas: "Image", threshold: float, scale: float) -> None:
    """In the lower right corner, from 0 to full colour: clear up to the threshold, which is marked and named."""
    import PIL.Image
    import PIL.ImageDraw

    font, draw = _font(canvas), PIL.ImageDraw.Draw(canvas)
    long, thick = round(min(max(canvas.width // 4, 80), 400)), max(6, round(font.size * 0.6))
    left, upper = canvas.width - long - 12, canvas.height - thick - 6
    low = min(0.0, threshold)
    values = np.linspace(low, scale, long)
    heat = np.clip((values - threshold) / max(scale - threshold, 1e-12), 0.0, 1.0)
    colours = np.where((values > threshold)[:, None], heat_colours(heat), 90.0).round().astype(np.uint8)
    draw.rectangle((left - 1, upper - 1, left + long, upper + thick), outline=(255, 255, 255))
    canvas.paste(PIL.Image.fromarray(np.repeat(colours[None], thick, axis=0)), (left, upper))
    mark = left + round((threshold - low) / (scale - low) * (long - 1))
    draw.line((mark, upper - 4, mark, upper + thick), fill=(255, 255, 255), width=max(1, thick // 6))
    text = f"threshold {threshold:.3g}"
    at = (min(mark, canvas.width - 6 - draw.textlength(text, font=font) / 2), upper - 5)
    draw.text(at, text, font=font, fill=(255, 255, 255), anchor="ms", stroke_width=1, stroke_fill=(0, 0, 0))


def tile(rgb: NDArray[np.uint8], spacing: tuple[float, float], side: int, *labels: str) -> NDArray[np.uint8]:
    """``(H, W, 3)`` → ``(side, side, 3)`` in its true proportions, centred on black; labels in the upper and lower corner."""
    import PIL.Image
    import PIL.ImageDraw

    tall, wide = rgb.shape[0] * spacing[0], rgb.shape[1] * spacing[1]
    rows, columns = (max(1, round(side * length / max(tall, wide))) for length in (tall, wide))
    shown = PIL.Image.fromarray(rgb).resize((columns, rows), PIL.Image.Resampling.BILINEAR, reducing_gap=2.0)
    frame = PIL.Image.new("RGB", (side, side))
    frame.paste(shown, ((side - columns) // 2, (side - rows) // 2))
    draw = PIL.ImageDraw.Draw(frame)
    for label, (at, anchor) in zip(labels, (((3, 2), "la"), ((3, side - 3), "ld")), strict=False):
        draw.text(at, label, fill=(255, 255, 255), anchor=anchor, stroke_width=1, stroke_fill=(0, 0, 0))
    return np.asarray(frame)


def montage(tiles: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Lay tiles of one size out in rows, left to right and top to bottom, about twice as many columns as rows."""
    columns = min(len(tiles), math.ceil(math.sqrt(2 * len(tiles))))
    black = [np.zeros_like(tiles[0])] * (-len(tiles) % columns)
    full = [*tiles, *black]
    return np.concatenate([np.concatenate(full[at : at + columns], axis=1) for at in range(0, len(full), columns)])


def with_legend(shown: NDArray[np.uint8], text: str, calibration: Calibration) -> NDArray[np.uint8]:
    """A montage with a strip under it that says what it shows."""
    import PIL.Image
    import PIL.ImageDraw

    strip = PIL.Image.new("RGB", (shown.shape[1], STRIP))
    _colour_bar(strip, calibration.reference.pixel_threshold, calibration.heat_scale)
    PIL.ImageDraw.Draw(strip).text((6, STRIP // 2), text, font=_font(strip), fill=(255, 255, 255), anchor="lm")
    return np.concatenate([shown, np.asarray(strip)])
