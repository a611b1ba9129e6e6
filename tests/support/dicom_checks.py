"""Other people's programs on our DICOM results: dciodvfy (dicom3tools), dsrdump (dcmtk), segimage2itkimage (dcmqi)."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from reshift.data.dicom.series import DicomVolume
from reshift.data.image import Image
from reshift.inference.dicom_export.export import export_dicom
from reshift.inference.dicom_export.sources import read_sources


def program(name: str) -> str | None:
    """Where a program is: on the path, or beside this Python."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.prefix) / "bin")) or _installed(name)


def _installed(name: str) -> str | None:
    """A script of a package whose environment is not the running one, but on its module path."""
    return next(
        (
            found
            for part in sys.path
            if len(Path(part).parents) > 2 and (found := shutil.which(name, path=str(Path(part).parents[2] / "bin")))
        ),
        None,
    )


def dciodvfy_errors(path: Path) -> list[str]:
    done = subprocess.run([program("dciodvfy") or "", str(path)], capture_output=True, text=True, check=False, errors="replace")
    return [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("Error")]


def dsrdump_errors(path: Path) -> list[str]:
    done = subprocess.run([program("dsrdump") or "", "-q", str(path)], capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 and not done.stderr else [done.stderr or f"exit code {done.returncode}"]


def export_findings(scan: DicomVolume | Image, out: Path) -> list[Path]:
    """Results of a scan with two findings, a speck, and pixels that nobody looked at."""
    shape = scan.voxels.shape if isinstance(scan, DicomVolume) else scan.pixels.shape[:2]
    maps = np.full(shape, 0.1, dtype=np.float32)
    maps[..., :2, :] = np.nan
    maps[..., 3:9, 4:9] = 0.95
    maps[..., 14:20, 12:18] = 0.9
    maps.reshape(-1, *shape[-2:])[0, 22, 2] = 0.8
    return export_dicom(out, read_sources(scan), scan, maps, 0.7, model="test", min_diameter=1.0)
