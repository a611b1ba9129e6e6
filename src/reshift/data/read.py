"""Find and read images and volumes of any format we know: PNG, JPEG, TIFF, NIfTI and DICOM."""

import os
from collections import Counter, OrderedDict
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.header import is_dicom
from reshift.data.files import list_files
from reshift.data.image import MAX_PIXELS, MIN_SIDE, TOO_SMALL, Image
from reshift.data.nifti import SUFFIXES as NIFTI
from reshift.data.nifti import is_nifti, read_nifti
from reshift.data.raster import SUFFIXES as RASTER
from reshift.data.raster import read_raster, read_raster_mask
from reshift.data.volume import Volume
from reshift.errors import UserError

if TYPE_CHECKING:
    from reshift.data.dicom.series import Series

NOT_DICOM = (*RASTER, *NIFTI, ".csv", ".json", ".txt", ".md")
MAX_OPEN = 6  # volumes kept open: image, mask and ignore mask of two cases


class Input(NamedTuple):
    """One thing to read: a file, or a DICOM series.

    The path of a series is the folder it fills, or a made-up name when it shares its folder with other series.
    """

    path: Path
    series: "Series | None" = None


def list_images(folder: Path) -> list[Path]:
    """Return every PNG, JPEG, TIFF and NIfTI file under ``folder``, sorted."""
    return [path for path in list_files(folder) if path.name.lower().endswith(RASTER + NIFTI)]


def list_inputs(folder: Path, notes: list[str] | None = None, without: Path | None = None) -> list[Input]:
    """Return every image and volume under ``folder``, sorted: files, and DICOM series by their headers.

    Damaged files are inputs, too, so that reading them reports them. ``notes`` get a line about files that are no inputs.
    The folder ``without`` is left out.
    """
    files, notes = list_files(folder, without), [] if notes is None else notes
    found = [Input(path) for path in files if path.name.lower().endswith(RASTER + NIFTI)]
    rest = [path for path in files if not path.name.lower().endswith(RASTER + NIFTI)]
    without_image, unknown = 0, len(rest)
    if not all(path.name.lower().endswith(NOT_DICOM) for path in rest):  # any other name may be DICOM: read the headers
        from reshift.data.dicom.series import find_series

        all_series, damaged, without_image, unknown = find_series(folder, rest)
        found += [Input(path) for path in damaged] + _series_inputs(all_series)
        notes += _missing_slices(found, damaged)
    if left := without_image + unknown:
        kinds = f"{without_image} DICOM without an image (reports, plans, segmentations, DICOMDIR), {unknown} of other kinds"
        notes.append(f"{folder}: {left} file{'s'[: left > 1]} left out: {kinds}")
    return sorted(found, key=lambda item: item.path)


def _series_inputs(all_series: "list[Series]") -> list[Input]:
    """Every series under a path of its own: its folder, or a made-up name in it if another series lies there or below."""
    folders = [
        {above for home in {file.parent for file in series.files} for above in (home, *home.parents)} for series in all_series
    ]
    series_below, found, taken = Counter(chain.from_iterable(folders)), list[Input](), set[Path]()
    for series in all_series:
        if not series.stacked:
            found += [Input(path) for path in series.files]
            continue
        home = Path(os.path.commonpath([file.parent for file in series.files]))
        name = home if series_below[home] == 1 else home / series.name
        while name in taken or (name != home and name.exists()):  # two hashes that begin alike, or a file of that name
            name = name.with_name(f"{name.name}~")
        taken.add(name)
        found.append(Input(name, replace(series, folder=name)))
    return found


def _missing_slices(inputs: list[Input], damaged: list[Path]) -> list[str]:
    """A line for every series with damaged files beside it."""
    notes = []
    for path, series in inputs if damaged else ():
        folders = {file.parent for file in series.files} if series else set()
        if names := [file.name for file in damaged if file.parent in folders]:
            named = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            many = f"{len(names)} damaged file{'s'[: len(names) > 1]} beside it ({named})"
            notes.append(f"{path}: {many} may be slices of it; it is read without them")
    return notes


def is_volume(path: Path) -> bool:
    """Whether ``path`` is read slice by slice: a NIfTI file, or the folder of a DICOM series."""
    return is_nifti(path) or (not path.name.lower().endswith(RASTER) and path.is_dir())


def open_input(path: Path, series: "Series | None" = None, max_pixels: int = MAX_PIXELS) -> Image | Volume:
    """Read any file we know, by its name or else by its content; a folder is a DICOM series. Every failure is one line.

    An image of more than ``max_pixels`` is refused unread.
    """
    try:
        return _open(path, series, max_pixels)
    except UserError:
        raise
    except Exception as err:  # one file must not end a run; what the error quotes may be about the patient
        raise UserError(f"{path}: cannot be read ({type(err).__name__}); damaged or cut short? Remove or replace it") from None


def _open(path: Path, series: "Series | None", max_pixels: int) -> Image | Volume:
    if series is not None:
        from reshift.data.dicom.series import read_series

        return _checked(read_series(series))
    if is_nifti(path):
        return _checked(read_nifti(path))
    if path.is_dir() or (not path.name.lower().endswith(RASTER) and is_dicom(path)):
        from reshift.data.dicom.series import read_dicom, read_series

        found = read_series(path) if path.is_dir() else read_dicom(path, max_pixels)
        return _checked(found) if isinstance(found, Volume) else found
    return read_raster(path, max_pixels)


def _checked(volume: Volume) -> Volume:
    slices, height, width = volume.voxels.shape
    if min(height, width) < MIN_SIDE:
        raise UserError(f"{volume.source}: its {slices} axial slices are {width}×{height} pixels, {TOO_SMALL}")
    return volume


def open_volume(path: Path) -> Volume:
    """Open a volume. The last few stay open, because many threads ask for their slices one by one."""
    try:
        stats = [file.stat() for file in (path, *(path.rglob("*") if path.is_dir() else ()))]
    except OSError as err:
        raise UserError(f"{path}: cannot be read ({err.strerror})") from None
    key = (path, max(stat.st_mtime_ns for stat in stats), sum(stat.st_size for stat in stats))  # a changed file is read again
    with _lock:
        is_first = key not in _volumes
        future = _volumes.setdefault(key, Future())
        _volumes.move_to_end(key)
        while len(_volumes) > MAX_OPEN:
            _volumes.popitem(last=False)
    if is_first:
        try:
            found = open_input(path)
            if not isinstance(found, Volume):
                raise UserError(f"{path}: is a single image, not a volume")
            future.set_result(found)
        except BaseException as err:
            with _lock:
                _volumes.pop(key, None)
            future.set_exception(err)
    return future.result()


_volumes: "OrderedDict[tuple[Path, int, int], Future[Volume]]" = OrderedDict()
_lock = Lock()


def read_image(path: Path, slice_index: int | None = None, max_pixels: int = MAX_PIXELS) -> Image:
    """Read one image: a whole file of up to ``max_pixels``, or a slice of a volume (counted from the most inferior)."""
    if slice_index is not None:
        return open_volume(path).image(slice_index)
    found = open_input(path, None, max_pixels)
    if isinstance(found, Volume):
        if len(found) > 1:
            raise UserError(f"{path}: a volume of {len(found)} slices, not one image; 'reshift score' takes volumes")
        return found.image(0)
    return found


def read_mask(path: Path, image: Path | None = None, slice_index: int | None = None) -> NDArray[np.bool_]:
    """Read the mask ``path``, ``(H, W)``; with a ``slice_index``, that slice of a mask on the same voxels as ``image``."""
    if image is None or slice_index is None:
        return read_raster_mask(path)
    if not is_volume(path):
        raise UserError(f"{path}: the mask of a volume must be a volume on the same voxels")
    volume, mask = open_volume(image), open_volume(path)
    if volume.voxels.shape != mask.voxels.shape:
        theirs, ours = ("×".join(str(n) for n in v.native_shape) for v in (mask, volume))
        raise UserError(f"{path}: has {theirs} voxels, its image {ours}; draw it on the image's own voxels")
    if not np.allclose(volume.affine, mask.affine, rtol=0.0, atol=0.01 * min(volume.spacing)):
        raise UserError(f"{path}: lies elsewhere in space than its image {image.name} (another affine); resample it to the image")
    return np.asarray(mask.plane(slice_index) >= 0.5)  # labels are whole numbers, but may be stored with a slope
