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

        known = np.isfinite(values)
        low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 0.0)
        pad = min(-1.0, float(np.nextafter(np.float32(low), np.float32(-np.inf))))  # below every value
        mapping = hd.pm.RealWorldValueMapping("ANOMALY", "Anomaly score", codes.UCUM.NoUnits, (low, high), 1.0, 0.0)
        width = max(high - low, 1e-6)  # LINEAR counts whole grey levels and needs a width of at least 1
        shown = hd.VOILUTTransformation((low + high) / 2, width, voi_lut_function="LINEAR_EXACT")
        made = hd.pm.ParametricMap(
            source_images=sources,
            pixel_array=np.where(known, values, np.float32(pad)).astype(np.float32),
            real_world_value_mappings=[mapping],
            voi_lut_transformations=[shown],
            contains_recognizable_visual_features=False,
            **identity.of("map"),
            **MAKER,
        )
        if not known.all():
            made.FloatPixelPaddingValue = made.FloatPixelPaddingRangeLimit = pad
        describe(made, sources[0])
    save(path, made, identity)
