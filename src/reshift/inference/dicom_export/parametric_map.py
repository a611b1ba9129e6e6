"""The heat-map as a DICOM Parametric Map, value by value."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reshift.inference.dicom_export.identity import MAKER, Identity
from reshift.inference.dicom_export.save import describe, making, save

if TYPE_CHECKING:
    from pydicom.dataset import Dataset


def write_parametric_map(path: Path, sources: "Sequence[Dataset]", values: NDArray[np.float32], identity: Identity) -> None:
    """Write ``values`` (planes as for ``write_seg``) as they are, in float32. NaN, outside the crop, becomes padding."""
    with making(path):
        import highdicom as hd
        from pydicom.sr.codedict import codes

        padded, low, high, pad = _padded(values)
        mapping = hd.pm.RealWorldValueMapping("ANOMALY", "Anomaly score", codes.UCUM.NoUnits, (low, high), 1.0, 0.0)
        width = max(high - low, 1e-6)  # LINEAR counts whole grey levels and needs a width of at least 1
        shown = hd.VOILUTTransformation((low + high) / 2, width, voi_lut_function="LINEAR_EXACT")
        made = hd.pm.ParametricMap(
            source_images=sources,
            pixel_array=padded,
            real_world_value_mappings=[mapping],
            voi_lut_transformations=[shown],
            contains_recognizable_visual_features=False,
            **identity.of("map"),
            **MAKER,
        )
        if pad is not None:
            made.FloatPixelPaddingValue = made.FloatPixelPaddingRangeLimit = pad
        describe(made, sources[0])
    save(path, made, identity)


def _padded(values: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, float, float | None]:
    """A copy without NaN, its lowest and highest value, and the padding below them; None where there was nothing to pad.

    Plane by plane: a whole volume would go through memory once for every operation.
    """
    made = np.array(values, dtype=np.float32, order="C")
    planes = made.reshape(-1, *made.shape[-2:])
    known = [np.isfinite(plane) for plane in planes]
    ends = [(plane[some].min(), plane[some].max()) for plane, some in zip(planes, known, strict=True) if some.any()]
    low, high = (float(min(e[0] for e in ends)), float(max(e[1] for e in ends))) if ends else (0.0, 0.0)
    if all(some.all() for some in known):
        return made, low, high, None
    pad = min(-1.0, float(np.nextafter(np.float32(low), np.float32(-np.inf))))  # below every value
    for plane, some in zip(planes, known, strict=True):
        plane[~some] = pad
    return made, low, high, pad
