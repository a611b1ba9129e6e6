"""Score images with this exported model: ``python run.py IMAGE_OR_FOLDER...`` prints one JSON line per image.

Needs numpy, pillow and onnxruntime, not reshift. It does what ``reshift score`` does with PNG, JPEG and TIFF files: the same
preparation, score, p-value and flag. It reads no DICOM or NIfTI files.
"""

import hashlib
import json
import sys
from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

Array = np.ndarray[Any, Any]
WIDE = {"I;16": 16, "I;16B": 16, "I;16L": 16, "I;16N": 16, "I": 16, "F": 32}  # Pillow's mode → bits


def read_image(path: Path, settings: dict[str, Any]) -> tuple[Array, int]:
    """Decode to ``(H, W, C)`` with one or three channels, and the bits of a stored value."""
    with PIL.Image.open(path, formats=("PNG", "JPEG", "TIFF")) as file:
        pages = getattr(file, "n_frames", 1) if file.format == "TIFF" else 1
        if pages > 1 or file.width * file.height > settings["max_pixels"] or min(file.size) < settings["min_side"]:
            raise ValueError(f"{file.width}×{file.height} pixels on {pages} pages: too small, too large, or not one image")
        bits, pixels = WIDE.get(file.mode, 8), decode(file)
    if not np.isfinite(pixels).all() or pixels.min() == pixels.max():
        raise ValueError("its pixels are all the same, or not finite; there is nothing to see")
    return pixels, 32 if bits == 16 and not 0 <= pixels.min() <= pixels.max() <= 65535 else bits


def decode(file: Any) -> Array:
    """Transparency becomes black, palettes are resolved, colours that are grey become one channel."""
    if file.mode in WIDE or file.mode in ("L", "1"):
        stored = np.array(file.convert("L") if file.mode == "1" else file)
        if stored.dtype not in (np.uint8, np.uint16):
            stored = stored.astype(np.uint16 if stored.dtype.kind == "u" else np.float32)
        if isinstance(file.info.get("transparency"), int):
            stored[stored == file.info["transparency"]] = 0
        return stored[:, :, None]
    clear = file.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in file.info
    colours = np.asarray(file.convert("RGBA" if clear else "RGB"))
    if clear:
        colours = np.rint(colours[..., :3] * (colours[..., 3:].astype(np.float32) / 255.0)).astype(np.uint8)
    return colours[:, :, :1] if (colours[..., :1] == colours[..., 1:]).all() else colours


def prepare(pixels: Array, bits: int, settings: dict[str, Any]) -> Array:
    """The network's input ``(C, S, S)`` in [-1, 1]: channels, grey range, square, resize, level."""
    if pixels.shape[2] > settings["channels"]:
        pixels = (pixels.astype(np.float32) @ np.float32(settings["luma"]))[:, :, None]
    pixels = np.repeat(pixels, settings["channels"] // pixels.shape[2], axis=2)
    low, high = grey_range(pixels, bits, settings)
    unit = np.subtract(pixels, low, dtype=np.float64) / (high - low)
    scaled = np.clip(unit * 2.0 - 1.0, -1.0, 1.0).astype(np.float32)
    side, size = (min if settings["square"] == "crop" else max)(scaled.shape[:2]), settings["size"]
    top, left = ((length - side) // 2 for length in scaled.shape[:2])  # negative where black is added
    part = scaled[max(0, top) : max(0, top) + side, max(0, left) : max(0, left) + side]
    around = [(max(0, -start), side - length - max(0, -start)) for start, length in zip((top, left), part.shape[:2], strict=True)]
    planes = np.pad(part, [*around, (0, 0)], constant_values=-1.0).transpose(2, 0, 1)
    if side != size:
        images = [PIL.Image.fromarray(np.ascontiguousarray(plane)) for plane in planes]
        planes = np.stack([np.asarray(image.resize((size, size), PIL.Image.Resampling.BILINEAR)) for image in images])
    ready, rule = np.clip(planes, -1.0, 1.0), settings["median"]
    unit = (ready + np.float32(1.0)) / np.float32(2.0)
    if settings["level"] != "median" or not (tissue := unit[unit > rule["dark"]]).size:
        return np.asarray(ready)
    raised, shoulder = unit * np.float32(rule["target"] / max(float(np.median(tissue)), rule["dark"])), rule["shoulder"]
    over = shoulder + (1.0 - shoulder) * np.tanh((raised - shoulder) / rule["softness"])
    return np.asarray(2.0 * np.where(raised < shoulder, raised, over) - 1.0, dtype=np.float32)


def grey_range(pixels: Array, bits: int, settings: dict[str, Any]) -> tuple[float, float]:
    """The stored values that become -1 and 1."""
    if settings["scale"] == "bits" or (settings["scale"] == "auto" and bits == 8):
        if bits == 32:
            raise ValueError("its pixels have no stored range, by which this model scales")
        return 0.0, float(2**bits - 1)
    whole = 0 <= pixels.min() <= pixels.max() <= 65535 and (pixels == np.rint(pixels)).all()
    low, high = (float(v) for v in np.percentile(pixels.astype(np.float64) if whole else pixels, settings["percentiles"]))
    return (low, high) if high > low else (float(pixels.min()), float(pixels.max()))


def judge(score: float, image: Array, calibration: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Score, p-value and flag by the calibration's normals; an image with less tissue than they have is not flagged."""
    order = ("held_out", "training") if calibration["default"] == "held-out" else ("training", "held_out")
    normals = calibration[order[0]] or calibration[order[1]]
    if np.mean(image.mean(0) > settings["tissue"]) < (calibration.get("smallest_tissue") or 0.0):
        score = min(score, normals["image_threshold"])
    owners = np.array(normals.get("owners") or range(len(normals["scores"])))
    tails = [*(1.0 / np.bincount(owners)[owners])[::-1].cumsum()[::-1].tolist(), 0.0]
    p_value = (1.0 + tails[bisect_left(normals["scores"], score)]) / (2.0 + float(owners.max()))
    return {"score": score, "p_value": p_value, "flag": bool(score > normals["image_threshold"])}


def load_runner(model: Path) -> Any:
    """A function that returns score and heatmap of images ``(N, C, S, S)``."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return lambda x: session.run(["score", "heatmap"], {"image": x})


if __name__ == "__main__":
    here, failed = Path(__file__).resolve().parent, 0
    for name, listed in json.loads((here / "checksums.json").read_text())["files"].items():
        if hashlib.sha256((here / name).read_bytes()).hexdigest() != listed["sha256"]:
            sys.exit(f"run.py: {here / name}: not the file that was exported; export the model again")
    about, settings, calibration = (json.loads((here / f"{n}.json").read_text()) for n in ("export", "prepare", "calibration"))
    runner, given = load_runner(here / about["model"]), [Path(name) for name in sys.argv[1:]]
    for path in [f for p in given for f in (sorted(x for x in p.rglob("*.*") if x.is_file()) if p.is_dir() else [p])]:
        try:
            image = prepare(*read_image(path, settings), settings)
            line = judge(float(runner(image[None])[0][0]), image, calibration, settings)
        except Exception as err:
            failed, line = 3, {"score": None, "p_value": None, "flag": None, "error": f"{path}: {err}"}
        print(json.dumps({"input": str(path), **line}), flush=True)
    sys.exit(failed)
