"""Score a volume: slice by slice, into one map on the file's own voxels, with memory bounded by a few slices and the map."""

import io
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.consensus import Place
from reshift.data.dicom.series import DicomVolume
from reshift.data.image import Image
from reshift.data.nifti import blank_map, write_nifti
from reshift.data.source import ahead
from reshift.data.volume import Volume
from reshift.errors import UserError
from reshift.inference.answer import Looked
from reshift.inference.calibration import Calibration
from reshift.inference.model import Found, Model, agreed, grouped
from reshift.inference.overlay import montage, overlay, shows, tile
from reshift.system.files import atomic_bytes, naming
from reshift.system.progress import counted

TOP = 5  # the volume's score is the mean of this many highest slice scores
TILES, SIDE = 32, 160  # of the montage: how many at most, and their size in pixels
NUMBERS = ("score", "p_value", "flag", "shift", "unlike", "shift_features", "differs")  # of a slice's record


class Scored(NamedTuple):
    """One slice; its map is with the others."""

    k: int  # from the most inferior
    at: int  # along the file's own axis
    numbers: dict[str, Any]


def score_volume(
    model: Model, volume: Volume, stem: str, out: Path, *, dicom: bool = False, overlays: str = "all"
) -> list[dict[str, Any]]:
    """Write the map and the montage; return a record per slice, ordered as in the file, and the volume's own at the end.

    With ``overlays`` "flagged" there is a montage where any slice is.
    """
    begun = time.monotonic()
    place = stem if stem.endswith(".nii.gz") else f"{stem}.nii.gz"
    target = out / "maps" / place
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    error = None
    with naming(target), blank_map(volume, target.parent) as maps:
        slices = sorted(_slices(model, volume, maps), key=lambda scored: scored.at)
        write_nifti(target, volume.to_native(maps), volume)
        if model.bundle.calibration is not None:
            scale = model.bundle.calibration.heat_scale
            if shows(overlays, flagged=any(scored.numbers["flag"] for scored in slices)):
                tiles = [_tile(volume, maps, scored, scale) for scored in _shown(slices)]
                _save_montage(out / "overlays" / f"{stem}.png", tiles)
            if dicom and isinstance(volume, DicomVolume):
                error = export(out / "dicom" / place.removesuffix(".nii.gz"), volume, np.asarray(maps), model.bundle.calibration)
    where, seconds = f"maps/{place}", time.monotonic() - begun
    records = [{"slice": s.at, **s.numbers, "map": where, "seconds": round(seconds / len(slices), 4)} for s in slices]
    highest = sorted((s.numbers["score"] for s in slices), reverse=True)[:TOP]
    whole = {"slice": None, "score": math.fsum(highest) / len(highest), "map": where, "seconds": round(seconds, 4)}
    return [*records, {**whole, "error": error}]


def _slices(model: Model, volume: Volume, maps: NDArray[np.float32]) -> Iterator[Scored]:
    """Score the slices, let them agree if that is wished, and fill in their maps."""
    for (k, seen), score, heatmap in agreed(model, _looked(model, volume), lambda at: Place("volume", at[0])):
        result = model.result(seen._replace(score=score, heatmap=heatmap))
        maps[k] = result.heatmap
        yield Scored(k, volume.native_index(k), {name: getattr(result, name) for name in NUMBERS})


def _looked(model: Model, volume: Volume) -> Iterator[Found[tuple[int, Looked]]]:
    """Score the slices with enough foreground, some at a time."""
    chosen = volume.chosen(model.bundle.config.data.min_foreground)
    groups = list(grouped(chosen, model.batch))
    loading = grouped(ahead(lambda k: model.prepare(volume.image(k)), chosen, 2 * model.batch), model.batch)
    for _, group in zip(counted(groups, volume.source.name), loading, strict=True):
        for (k, _), seen in zip(group, model.look([future.result() for _, future in group]), strict=True):
            if not math.isfinite(seen.score):
                raise UserError(f"{volume.source}: the model's score is {seen.score}; its training may have diverged")
            yield (k, seen), seen.score, seen.heatmap


def _shown(slices: list[Scored]) -> list[Scored]:
    """At most TILES slices, evenly spread; the highest score is among them."""
    at = np.linspace(0, len(slices) - 1, min(TILES, len(slices))).round().astype(int)
    best = max(range(len(slices)), key=lambda i: float(slices[i].numbers["score"]))
    at[np.abs(at - best).argmin()] = best
    return [slices[i] for i in at]


def _tile(volume: Volume, maps: NDArray[np.float32], scored: Scored, scale: float) -> NDArray[np.uint8]:
    """One slice with its map, labelled with its index in the file; a star says that it was flagged."""
    image = volume.image(scored.k)
    blended = overlay(image.pixels, maps[scored.k], scale, image.window)
    return tile(blended, image.spacing, SIDE, f"{scored.at}{' *' if scored.numbers['flag'] else ''}")


def _save_montage(target: Path, tiles: list[NDArray[np.uint8]]) -> None:
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(montage(tiles)).save(buffer, "png")
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    atomic_bytes(target, buffer.getvalue())


def export(folder: Path, scan: DicomVolume | Image, maps: NDArray[np.float32], calibration: Calibration) -> str | None:
    """Write what a PACS takes: the thresholded map, the map itself, and overlays, all referring to the scan.

    Many scans lack what DICOM wants of a result. That loses the result, never the score: what is wrong is returned.
    """
    from reshift.inference.dicom_export import export_dicom, read_sources

    try:
        export_dicom(folder, read_sources(scan), scan, maps, calibration.reference.pixel_threshold, calibration.heat_scale)
    except UserError as err:
        return str(err)
    return None
