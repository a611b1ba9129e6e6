"""Score a volume slice by slice, into one heat-map on the file's own voxels. Memory holds a few slices and the heat-map."""

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
from reshift.inference.calibration import Calibration
from reshift.inference.consensus import Place, in_slices
from reshift.inference.findings.case import volume_findings
from reshift.inference.inputs import result_stem
from reshift.inference.labels import UNLIKE, blend, montage, tile, with_legend
from reshift.inference.model import Model
from reshift.inference.outputs import DEFAULTS, Outputs
from reshift.inference.overlay import png, wants_overlay
from reshift.inference.preview import SLICES, preview_tile, save_preview
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
    model: Model, volume: Volume, name: str, out: Path, *, dicom: bool = False, overlays: str = "all",
    outputs: Outputs = DEFAULTS,
) -> list[dict[str, Any]]:  # fmt: skip
    """Write the heat-map and the montage; return a record per slice, ordered as in the file, and the volume's own at the end.

    With ``overlays`` "flagged" there is a montage where any slice is flagged.
    """
    begun = time.monotonic()
    where = f"maps/{name.removesuffix('.nii.gz')}.nii.gz"
    target = out / where
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with writing(target), blank_map(volume, target.parent) as heatmaps:
        slices = sorted(_score_slices(model, volume, heatmaps), key=lambda scored: scored.position)
        judged = [s for s in slices if s.numbers["not_judged"] is None] or slices
        highest = sorted((s.numbers["score"] for s in judged), reverse=True)[:TOP]
        whole = {"slice": None, "score": math.fsum(highest) / len(highest), "map": where}
        write_nifti(target, volume.to_native(heatmaps), volume)
        if model.bundle.calibration is not None:
            if wants_overlay(overlays, flagged=any(scored.numbers["flag"] for scored in slices)):
                shown = _montage(volume, heatmaps, slices, model.bundle.calibration, labels=outputs.labels)
                _save(out / "overlays" / f"{result_stem(name)}.png", png(shown))
            whole |= _findings(model.bundle.calibration, volume, heatmaps, slices, whole, out, name, dicom, outputs)
    seconds = time.monotonic() - begun
    records = [{"slice": s.position, **s.numbers, "map": where, "seconds": round(seconds / len(slices), 4)} for s in slices]
    return [*records, {**whole, "seconds": round(seconds, 4)}]


def _findings(
    calibration: Calibration, volume: Volume, heatmaps: NDArray[np.float32], slices: list[ScoredSlice], whole: dict[str, Any],
    out: Path, name: str, dicom: bool, outputs: Outputs,
) -> dict[str, Any]:  # fmt: skip
    """Measure the findings and write preview and DICOM results; return what the volume's record says of them."""
    error, threshold = None, calibration.reference.pixel_threshold
    p_values = {s.k: s.numbers["p_value"] for s in slices}
    found = volume_findings(volume, heatmaps, p_values, threshold, outputs.min_diameter)
    if outputs.preview:
        best = sorted(slices, key=lambda s: -s.numbers["score"])[:SLICES]
        shown = [(volume.image(s.k), heatmaps[s.k], s.numbers, calibration, s.position) for s in best]
        save_preview(out, result_stem(name), [preview_tile(*one) for one in shown])
    if dicom and isinstance(volume, DicomVolume):
        from reshift.inference.dicom_export.export import Result, export_result

        result = Result(volume, np.asarray(heatmaps), found, whole)
        error = export_result(out / "dicom" / name.removesuffix(".nii.gz"), result, outputs.dicom_setup(calibration))
    return {"error": error, "findings": found and found.findings}


def _score_slices(model: Model, volume: Volume, heatmaps: NDArray[np.float32]) -> Iterator[ScoredSlice]:
    """Score the slices with enough foreground and fill in their heat-maps."""

    def read(k: int) -> Sample[int]:
        return prepare_sample(k, volume.image(k), model.bundle.config.data)

    chosen = volume.foreground_slices(model.bundle.config.data.min_foreground)
    samples = predict_samples(model, counted(chosen, volume.source.name), read)
    slice_mm = model.bundle.config.data.slice_mm
    for sample in average_stacks(model, samples, lambda k: Place("volume", in_slices(volume, k, slice_mm))):
        if sample.error is not None:
            raise sample.error
        result = finish(sample, model.bundle.calibration)
        heatmaps[sample.case] = result.heatmap
        yield ScoredSlice(sample.case, volume.native_index(sample.case), result.numbers())


def _montage(
    volume: Volume, heatmaps: NDArray[np.float32], slices: list[ScoredSlice], calibration: Calibration, *, labels: bool
) -> NDArray[np.uint8]:
    """The TILES slices with the highest scores, the most suspicious first."""
    first = sorted(slices, key=lambda scored: -float(scored.numbers["score"]))[:TILES]
    shown = montage([_tile(volume, heatmaps, scored, calibration, labels=labels) for scored in first])
    text = f"{len(first)} of {len(slices)} scored slices, highest score first; * flagged"
    return with_legend(shown, text, calibration) if labels else shown


def _tile(
    volume: Volume, heatmaps: NDArray[np.float32], scored: ScoredSlice, calibration: Calibration, *, labels: bool
) -> NDArray[np.uint8]:
    """One slice with its heat-map, labelled with its index in the file; a star says that it was flagged, a dash not judged."""
    image, numbers = volume.image(scored.k), scored.numbers
    blended = blend(image.pixels, heatmaps[scored.k], numbers, calibration, image.window)
    mark = " *" if numbers["flag"] else " -" if numbers["not_judged"] else ""
    below = [UNLIKE] if numbers["unlike"] else [f"p = {numbers['p_value']:.2g}"] * labels
    return tile(blended, image.spacing, SIDE, f"{scored.position}{mark}", *below)


def _save(target: Path, content: bytes) -> None:
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    atomic_bytes(target, content)
