"""Score a volume slice by slice, into one heat-map on the file's own voxels. Memory holds a few slices and the heat-map."""

import io
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.series import DicomVolume
from reshift.data.nifti import blank_map, write_nifti
from reshift.data.volume import Volume
from reshift.inference.consensus import Place
from reshift.inference.model import Model
from reshift.inference.overlay import montage, overlay, tile, wants_overlay
from reshift.inference.result import finish
from reshift.inference.stream import Sample, average_stacks, predict_samples, prepare_sample
from reshift.system.files import atomic_bytes, writing
from reshift.system.progress import counted

TOP = 5  # the volume's score is the mean of this many highest slice scores
TILES, SIDE = 32, 160  # of the montage: how many at most, and their size in pixels


class ScoredSlice(NamedTuple):
    """One slice; its heat-map is in the volume's."""

    k: int  # from the most inferior
    position: int  # along the file's own axis
    numbers: dict[str, Any]  # of its record


def score_volume(
    model: Model, volume: Volume, name: str, out: Path, *, dicom: bool = False, overlays: str = "all"
) -> list[dict[str, Any]]:
    """Write the heat-map and the montage; return a record per slice, ordered as in the file, and the volume's own at the end.

    With ``overlays`` "flagged" there is a montage where any slice is flagged.
    """
    begun, error, calibration = time.monotonic(), None, model.bundle.calibration
    where = f"maps/{name.removesuffix('.nii.gz')}.nii.gz"
    target = out / where
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with writing(target), blank_map(volume, target.parent) as heatmaps:
        slices = sorted(_score_slices(model, volume, heatmaps), key=lambda scored: scored.position)
        write_nifti(target, volume.to_native(heatmaps), volume)
        if calibration is not None:
            if wants_overlay(overlays, flagged=any(scored.numbers["flag"] for scored in slices)):
                tiles = [_tile(volume, heatmaps, scored, calibration.heat_scale) for scored in _shown(slices)]
                _save_montage(out / "overlays" / f"{name}.png", tiles)
            if dicom and isinstance(volume, DicomVolume):
                from reshift.inference.dicom_export import export_result

                error = export_result(out / "dicom" / name.removesuffix(".nii.gz"), volume, np.asarray(heatmaps), calibration)
    seconds = time.monotonic() - begun
    records = [{"slice": s.position, **s.numbers, "map": where, "seconds": round(seconds / len(slices), 4)} for s in slices]
    highest = sorted((s.numbers["score"] for s in slices), reverse=True)[:TOP]
    whole = {"slice": None, "score": math.fsum(highest) / len(highest), "map": where, "seconds": round(seconds, 4)}
    return [*records, {**whole, "error": error}]


def _score_slices(model: Model, volume: Volume, heatmaps: NDArray[np.float32]) -> Iterator[ScoredSlice]:
    """Score the slices with enough foreground and fill in their heat-maps."""

    def read(k: int) -> Sample[int]:
        return prepare_sample(k, volume.image(k), model.bundle.config.data)

    chosen = volume.foreground_slices(model.bundle.config.data.min_foreground)
    samples = predict_samples(model, counted(chosen, volume.source.name), read)
    for sample in average_stacks(model, samples, lambda k: Place("volume", k)):
        if sample.error is not None:
            raise sample.error
        result = finish(sample, model.bundle.calibration)
        heatmaps[sample.case] = result.heatmap
        yield ScoredSlice(sample.case, volume.native_index(sample.case), result.numbers())


def _shown(slices: list[ScoredSlice]) -> list[ScoredSlice]:
    """At most TILES slices, evenly spread; the highest score is among them."""
    at = np.linspace(0, len(slices) - 1, min(TILES, len(slices))).round().astype(int)
    best = max(range(len(slices)), key=lambda i: float(slices[i].numbers["score"]))
    at[np.abs(at - best).argmin()] = best
    return [slices[i] for i in at]


def _tile(volume: Volume, heatmaps: NDArray[np.float32], scored: ScoredSlice, scale: float) -> NDArray[np.uint8]:
    """One slice with its heat-map, labelled with its index in the file; a star says that it was flagged."""
    image = volume.image(scored.k)
    blended = overlay(image.pixels, heatmaps[scored.k], scale, image.window)
    return tile(blended, image.spacing, SIDE, f"{scored.position}{' *' if scored.numbers['flag'] else ''}")


def _save_montage(target: Path, tiles: list[NDArray[np.uint8]]) -> None:
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(montage(tiles)).save(buffer, "png")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    atomic_bytes(target, buffer.getvalue())
