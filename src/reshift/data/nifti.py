"""Read and write NIfTI-1 and NIfTI-2, ``.nii`` and ``.nii.gz``. nibabel interprets the header; every value is checked.

A ``.nii`` is memory-mapped. A ``.nii.gz`` is unpacked once: into memory, or into an unnamed temporary file if it is large.
"""

import gzip
import logging
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from reshift.data.files import check_file
from reshift.data.volume import Volume, canonical
from reshift.errors import UserError
from reshift.system.deflate import gzip_compressor
from reshift.system.files import atomic_file

SUFFIXES = (".nii", ".nii.gz")
MAX_VOXELS = 2**30  # 1024×1024×1024; more is a mistake or an attack
MAX_IN_MEMORY = 2**29  # bytes; a larger unpacked file or map goes to disk
MAX_GZIP_RATIO = 1032  # no gzip file unpacks to more
HEADERS = {348: 352, 540: 544}  # size of the header (NIfTI-1, NIfTI-2) → default start of the voxels
CHUNK = 2**22
MAX_BLOCK = 2**25  # bytes of a map that are written at once
GEOMETRY = (  # what a heat-map keeps of a header: numbers about the grid, never text, which may name a patient
    *("dim_info", "dim", "pixdim", "xyzt_units", "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d"),
    *("qoffset_x", "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z"),
)
GREY_TYPES = "bBhHiIlLqQfd"  # numpy's type codes of grey values

_quiet = logging.getLogger("reshift.nifti")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False  # what nibabel corrects by itself is not reported


def is_nifti(path: Path) -> bool:
    """Whether the file name ends like a NIfTI file."""
    return path.name.lower().endswith(SUFFIXES)


def read_nifti(path: Path) -> Volume:
    """Read ``path``, or refuse it in one line."""
    with _open(path) as file:
        header, offset = _header(path, file)
        shape = _shape(path, header)
        dtype = _dtype(path, header)
        slope, intercept = _scaling(path, header)
        affine = _affine(path, header, shape)
        needed = offset + math.prod(shape) * dtype.itemsize
        array = _voxels(path, file, offset, needed, dtype).reshape(shape, order="F")
    bits = {np.dtype(np.uint8): 8, np.dtype(np.uint16): 16}.get(dtype, 32) if (slope, intercept) == (1.0, 0.0) else 32
    _refuse_nan(path, array, slope, intercept)
    return canonical(array, affine, source=path, bits=bits, slope=slope, intercept=intercept, header=header)


def write_nifti(path: Path, native_array: NDArray[Any], volume: Volume) -> None:
    """Write float32 values on ``volume``'s own grid, with its affine and orientation codes. The file is replaced at once."""
    zipped = gzip_compressor() if path.name.endswith(".gz") else None
    with atomic_file(path) as file:
        for part in _map_parts(native_array, volume):
            file.write(part if zipped is None else zipped.compress(part))
        if zipped is not None:
            file.write(zipped.flush())


def _map_parts(native_array: NDArray[Any], volume: Volume) -> Iterator[bytes]:
    """The bytes of a map, first axis fastest. Many planes at a time: one alone may take a single value of every cache line."""
    yield _map_header(volume).binaryblock + bytes(4)  # four zeros: no extensions follow
    rows, columns, planes = native_array.shape
    step = max(1, MAX_BLOCK // (4 * rows * columns))
    for k in range(0, planes, step):
        yield np.asfortranarray(native_array[:, :, k : k + step], dtype="<f4").tobytes(order="F")


@contextmanager
def blank_map(volume: Volume, folder: Path) -> Iterator[NDArray[np.float32]]:
    """An empty map ``(S, H, W)`` in canonical order, all NaN; a large one is an unnamed file in ``folder``.

    In memory the planes of the map's slices lie one after the other, whatever their order in a file.
    """
    shape = tuple(volume.native_shape[axis] for axis in volume.axes)
    with _spill(math.prod(shape) * 4, folder) as file:
        maps: Any = np.empty(shape, np.float32) if file is None else np.memmap(file, np.float32, "w+", 0, shape)
        for plane in maps:
            plane[...] = np.nan
        yield maps


def _map_header(volume: Volume) -> Any:
    """The header of a map: the image's grid, where there is one with both transforms and their codes, and nothing else."""
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    if volume.header is not None:
        header = type(volume.header)(endianness="<")
        for name in GEOMETRY:
            header[name] = volume.header[name]
        header["dim"][1 + int(header["dim"][0]) :], header["pixdim"][4:] = 1, 1  # not used, so they could hold anything
    else:
        kind: Any = Nifti1Header if max(volume.native_shape) < 2**15 else Nifti2Header
        header = kind(endianness="<")
        header.set_data_shape(volume.native_shape)
        header.set_sform(volume.native_affine, 1)
        header.set_qform(volume.native_affine, 1)
        header.set_xyzt_units("mm")
    header["magic"] = header.single_magic
    header.set_data_dtype(np.float32)
    header["vox_offset"] = HEADERS[header.sizeof_hdr]
    header["scl_slope"], header["scl_inter"], header["cal_min"], header["cal_max"] = 1.0, 0.0, 0.0, 0.0
    header["descrip"] = b"reshift heat-map"
    return header


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Open the file, through gzip if its first bytes say so; every failure becomes one line."""
    check_file(path)
    try:
        with path.open("rb") as raw:
            begin = raw.read(2)
            raw.seek(0)
            if begin == b"\x1f\x8b":
                with gzip.open(raw) as file:
                    yield file  # type: ignore[misc]
            else:
                yield raw
    except UserError:
        raise
    except Exception as err:  # nibabel and zlib can raise anything on damaged bytes
        reason = getattr(err, "strerror", None) or str(err) or type(err).__name__
        raise UserError(f"{path}: cannot be read ({reason}); damaged or cut short? Remove it or copy it again") from None


def _header(path: Path, file: IO[bytes]) -> tuple[Any, int]:
    """The header as stored, uncorrected, and where the voxels begin."""
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    begin = file.read(4)
    size = next((n for n in HEADERS if begin in (n.to_bytes(4, "little"), n.to_bytes(4, "big"))), 0)
    block = begin + file.read(max(0, size - 4))
    if not size or len(block) < size:
        raise UserError(f"{path}: not a NIfTI file, or damaged; remove or replace it")
    order = "<" if begin == size.to_bytes(4, "little") else ">"
    kind: Any = Nifti1Header if size == 348 else Nifti2Header
    header = kind(block, endianness=order, check=False)
    magic = bytes(header["magic"].item())
    if magic.startswith((b"ni1", b"ni2")):
        raise UserError(f"{path}: a pair of files (.hdr and .img); save it as one .nii or .nii.gz file")
    if not magic.startswith((b"n+1", b"n+2")):
        raise UserError(f"{path}: not a NIfTI file (it may be Analyze 7.5, which has no orientation); save it as .nii or .nii.gz")
    offset = float(header["vox_offset"])
    if not math.isfinite(offset) or (offset != 0 and not size <= offset < 2**40):
        raise UserError(f"{path}: its header puts the voxels at byte {offset:g}; damaged, remove it or copy it again")
    return header, int(offset) or HEADERS[size]


def _shape(path: Path, header: Any) -> tuple[int, int, int]:
    """The three lengths. A file of several volumes is refused."""
    count, *dims = (int(n) for n in header["dim"])
    if not 2 <= count <= 7 or min(dims[:count]) < 1:
        raise UserError(
            f"{path}: its header says the size is {dims[: max(0, min(count, 7))]}; damaged, remove it or copy it again"
        )
    dims = dims[:count] + [1] * (7 - count)
    if (volumes := math.prod(dims[3:])) > 1:
        raise UserError(
            f"{path}: holds {volumes:,} volumes (it is {'×'.join(str(n) for n in dims[:count])}); give one volume per file, "
            "e.g. split it with nibabel.four_to_three or fslsplit"
        )
    if math.prod(dims) > MAX_VOXELS:
        raise UserError(f"{path}: {'×'.join(str(n) for n in dims[:3])} voxels, over the limit of {MAX_VOXELS:,}; refused unread")
    return dims[0], dims[1], dims[2]


def _dtype(path: Path, header: Any) -> np.dtype[Any]:
    from nibabel.spatialimages import HeaderDataError

    try:
        dtype: np.dtype[Any] = np.dtype(header.get_data_dtype())
    except (HeaderDataError, KeyError):
        dtype = np.dtype("V")
    if dtype.kind == "V" and not dtype.names:
        raise UserError(f"{path}: unknown voxel type {int(header['datatype'])}; damaged, or save it as float32")
    if dtype.kind not in "iuf" or dtype.char not in GREY_TYPES:
        kind = "colour" if dtype.names else "complex numbers" if dtype.kind == "c" else str(dtype)
        raise UserError(f"{path}: its voxels are {kind}, not grey values; save magnitudes as int16 or float32")
    return dtype


def _scaling(path: Path, header: Any) -> tuple[float, float]:
    """Slope and intercept; a slope of 0 or NaN means that values are as stored."""
    slope, intercept = float(header["scl_slope"]), float(header["scl_inter"])
    if slope == 0 or not math.isfinite(slope):
        return 1.0, 0.0
    if not math.isfinite(intercept):
        raise UserError(f"{path}: scl_inter is {intercept}; damaged, set it to 0 or copy the file again")
    return slope, intercept


def _affine(path: Path, header: Any, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """Index → RAS+ millimetres by nibabel's rules: the sform if it is set, else the qform, else the spacing alone."""
    corrected = header.copy()
    with np.errstate(all="ignore"):
        if int(header["sform_code"]) not in range(1, 6):
            spacing = [float(v) for v in header["pixdim"][1:4]]
            if any(not (0 < step < math.inf) and length > 1 for step, length in zip(spacing, shape, strict=True)):
                given = "×".join(f"{step:g}" for step in spacing)
                raise UserError(f"{path}: its voxels are {given} mm; a spacing must be above zero, correct the header (pixdim)")
        corrected.check_fix(logger=_quiet, error_level=40)
        return np.asarray(corrected.get_best_affine(), dtype=np.float64)


def _voxels(path: Path, file: IO[bytes], offset: int, needed: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """All voxels, flat: memory-mapped, or unpacked. A file too small for its header is refused before anything is allocated."""
    size, zipped = path.stat().st_size, isinstance(file, gzip.GzipFile)
    if needed > (size * MAX_GZIP_RATIO if zipped else size):
        raise UserError(f"{path}: its header promises {needed:,} bytes, the file is too small for that; cut short? Copy it again")
    if not zipped:
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=((needed - offset) // dtype.itemsize,))
    _skip(file, offset - file.tell())
    count = needed - offset
    with _spill(count) as spill:
        store: Any = np.empty(count, np.uint8) if spill is None else np.memmap(spill, np.uint8, "w+", shape=(count,))
        view, at = memoryview(store), 0
        while at < count:
            got = file.readinto(view[at : at + CHUNK])  # type: ignore[attr-defined]
            if not got:
                raise UserError(f"{path}: ends {count - at:,} bytes early; cut short? Copy it again")
            at += got
    file.read(CHUNK)  # gzip checks its checksum when the end is read
    return np.asarray(store.view(dtype))


@contextmanager
def _spill(count: int, folder: Path | None = None) -> Iterator[IO[bytes] | None]:
    """An unnamed temporary file for what is too large for memory; None for anything smaller."""
    if count <= MAX_IN_MEMORY:
        yield None
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, count)  # on a full disk this raises; the memory-map would crash
        yield file


def _skip(file: IO[bytes], count: int) -> None:
    while count > 0 and (got := len(file.read(min(count, CHUNK)))):
        count -= got


def _refuse_nan(path: Path, array: NDArray[Any], slope: float, intercept: float) -> None:
    limit = float(np.finfo(np.float32).max)
    if array.dtype.kind != "f" and abs(slope) * 2.0**64 + abs(intercept) < limit:
        return  # no integer can become infinite
    for k in range(array.shape[2]):
        with np.errstate(all="ignore"):
            real = array[:, :, k].astype(np.float64) * slope + intercept
        if not (np.abs(real) <= limit).all():
            raise UserError(
                f"{path}: contains NaN or infinite voxels (in plane {k} of its last axis); "
                "replace them before use, e.g. with numpy.nan_to_num"
            )
