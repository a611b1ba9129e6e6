"""In a reader process: a case's heat-map in the format that was asked for."""

import io
import zipfile
from pathlib import Path

import numpy as np

from reshift.data.nifti import write_nifti
from reshift.data.volume import Volume, canonical
from reshift.errors import UserError
from reshift.serve.views import Where, _heatmap, _opened


def as_npy(where: Where, target: Path) -> Path:
    """Float32 values; of a volume ``(slices, rows, columns)`` from inferior to superior."""
    heatmap = _heatmap(where)
    if where.map is not None and where.map.endswith(".npy"):
        return Path(where.map)
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(heatmap))
    return _write(target.with_suffix(".npy"), buffer.getvalue())


def as_nifti(where: Where, target: Path) -> Path:
    """On the scan's own grid; an image becomes a volume of one slice, in millimetres where its file says how many."""
    heatmap = _heatmap(where)
    if where.map is not None and where.map.endswith(".nii.gz"):
        return Path(where.map)
    image = _opened(where.roots, where.source)
    assert not isinstance(image, Volume)
    affine = np.diag([-image.spacing[1], -image.spacing[0], 1.0, 1.0])  # columns run to the left, rows to posterior
    array = heatmap.T[:, :, None]
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_suffix(".nii.gz")
    write_nifti(path, array, canonical(array, affine, source=Path("heat-map")))
    return path


def as_dicom(folder: Path, target: Path) -> Path:
    """A zip of the DICOM results, where the job was asked for them."""
    files = sorted(folder.glob("*.dcm")) if folder.is_dir() else []
    if not files:
        raise UserError("the case has no DICOM results; send DICOM files, and ask for them with dicom=true")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.write(path, path.name)
    return _write(target.with_suffix(".zip"), buffer.getvalue())


def _write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
