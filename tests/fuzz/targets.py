"""What is fuzzed: every kind of file that a stranger may send, with seeds that our own code writes.

A target reads one input the way the commands do. It may refuse it with a ``UserError``; anything else is a finding.
"""

import gzip
import hashlib
import io
import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import PIL.Image
from bench_suites import BRIGHTNESS, HEAD, SWEEP
from dicom_files import ct, enhanced, grey, series, values, write
from helpers import COLUMNS, noise, save, save_many
from numpy.typing import NDArray
from volumes import canonical_affine, head, save_nifti, stored

from reshift.config import DataConfig
from reshift.data.archive import unpacked
from reshift.data.manifest import load_cases, read_cases
from reshift.data.prepare import prepare
from reshift.data.raster import read_raster_mask
from reshift.data.read import list_inputs, open_input
from reshift.data.volume import Volume
from reshift.errors import UserError

if TYPE_CHECKING:
    from reshift.methods.detector import Detector

FROZEN = Path(__file__).parents[1] / "frozen" / "dmd" / "bundle"
SETTINGS = DataConfig(size=32)


class Target(NamedTuple):
    """One kind of input."""

    seeds: Callable[[Path], Iterator[bytes]]  # given an empty folder
    read: Callable[[bytes, Path], None]  # an input, and a folder of its own


def run(target: Target, data: bytes, folder: Path) -> bool:
    """Read one input; whether it was accepted."""
    try:
        target.read(data, folder)
    except UserError as err:
        if len(str(err).splitlines()) != 1:
            raise AssertionError(f"not one line: {str(err)!r}") from err
        return False
    return True


def _read_all(path: Path, found: object = None) -> None:
    """Read an image or the slices of a volume, as far as ``score`` does."""
    opened = open_input(path) if found is None else found
    if isinstance(opened, Volume):
        for k in opened.foreground_slices(0.1)[:2]:
            prepare(opened.image(k), SETTINGS)
    else:
        prepare(opened, SETTINGS)  # type: ignore[arg-type]


def _raster_seeds(folder: Path) -> Iterator[bytes]:
    colour = np.stack([noise(i, 20, 18) for i in range(3)], axis=-1)
    wide = noise(1, 20, 18).astype(np.uint16) * 200
    alpha = PIL.Image.fromarray(colour).convert("RGBA")
    kinds: list[NDArray[Any]] = [noise(0, 20, 18), colour, wide, noise(2, 20, 18) > 99, np.asarray(alpha)]
    for i, pixels in enumerate(kinds):
        for suffix in ("png", "tif", *(["jpg"] if i < 2 else [])):
            yield save(pixels, folder / f"{i}.{suffix}").read_bytes()
    yield save(noise(3, 20, 18).astype(np.float32), folder / "f.tif").read_bytes()
    yield save(colour, folder / "p.jpg", progressive=True).read_bytes()
    for name, options in (("p.png", {}), ("l.tif", {"compression": "tiff_lzw"}), ("d.tif", {"compression": "tiff_deflate"})):
        PIL.Image.fromarray(colour).convert("P").save(folder / name, **options)
        yield (folder / name).read_bytes()


def _read_raster(data: bytes, folder: Path) -> None:
    (folder / "a.png").write_bytes(with_checksums(data))
    with suppress(UserError):
        read_raster_mask(folder / "a.png")
    _read_all(folder / "a.png")


def with_checksums(data: bytes) -> bytes:
    """A PNG with right checksums, or it would be refused before anything else is looked at."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    out, at = bytearray(data), 8
    while at + 12 <= len(out):
        length = int.from_bytes(out[at : at + 4])
        end = at + 8 + length
        if end + 4 > len(out):
            break
        out[end : end + 4] = zlib.crc32(out[at + 4 : end]).to_bytes(4)
        at = end + 4
    return bytes(out)


def _nifti_seeds(folder: Path) -> Iterator[bytes]:
    small = (3, 17, 18)
    for i, kind in enumerate((np.uint8, np.int16, np.float32)):
        stack = stored(head(0, small), ((2, 1, 0), (False, True, False)), canonical_affine(small))
        yield bytes([i]) + save_nifti(folder / f"{i}.nii", *stack, kind).read_bytes()


def _read_nifti(data: bytes, folder: Path) -> None:
    packed = bool(data[:1] and data[0] & 1)
    path = folder / ("a.nii.gz" if packed else "a.nii")
    path.write_bytes(gzip.compress(data[1:], 1) if packed else data[1:])
    _read_all(path)


def _dicom_seeds(folder: Path) -> Iterator[bytes]:
    from pydicom.uid import JPEG2000Lossless, JPEGLSLossless, RLELossless

    for i, ds in enumerate((grey(values(), stored=12), ct(values()), enhanced(), grey(values(high=255), stored=8))):
        yield write(ds, folder / f"{i}.dcm").read_bytes()
    for syntax in (RLELossless, JPEGLSLossless, JPEG2000Lossless):
        ds = grey(values(), stored=12)
        with suppress(Exception):  # without an encoder there is one seed less
            ds.compress(syntax, values().astype(np.uint16), generate_instance_uid=False)
            yield write(ds, folder / f"{syntax}.dcm").read_bytes()


def _read_dicom(data: bytes, folder: Path) -> None:
    (folder / "a.dcm").write_bytes(data)
    _read_all(folder / "a.dcm")


def _series_seeds(folder: Path) -> Iterator[bytes]:
    series(folder / "s", count=3)
    parts = [path.read_bytes() for path in sorted((folder / "s").iterdir())]
    yield b"".join(struct.pack("<H", len(part)) + part for part in parts)


def _read_series(data: bytes, folder: Path) -> None:
    at = count = 0
    while at + 2 <= len(data) and count < 5:
        (length,) = struct.unpack_from("<H", data, at)
        (folder / f"IM{count}").write_bytes(data[at + 2 : at + 2 + length])
        at, count = at + 2 + length, count + 1
    for item in list_inputs(folder):
        with suppress(UserError):
            _read_all(item.path, open_input(*item))


def _zip_seeds(folder: Path) -> Iterator[bytes]:
    images = save_many(folder / "images", 2, 16, 16)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for path in sorted(images.iterdir()):
                archive.write(path, f"set/{path.name}")
            archive.writestr("manifest.csv", f"{COLUMNS}\nset/000.png,,a,0,test,\n")
        yield buffer.getvalue()


def _read_zip(data: bytes, folder: Path) -> None:
    inside = folder / "inside"
    inside.mkdir()
    (inside / "a.zip").write_bytes(data)
    with unpacked(inside / "a.zip") as found:
        home = found.resolve()
        for path in found.rglob("*"):
            assert path.resolve().is_relative_to(home), f"{path} leads out of the folder"
        with suppress(UserError):
            load_cases(found)
    assert [path.name for path in folder.rglob("*")] in ([], ["inside", "a.zip"]), "a zip wrote beside its folder"


def _manifest_seeds(folder: Path) -> Iterator[bytes]:
    rows = ("images/0.png,,s0,0,train,", "images/1.png,images/0.png,s1,1,test,a note", 'images/2.png,,"s,2",0,val,')
    yield "\n".join((COLUMNS, *rows, "")).encode()
    yield f"\ufeff{COLUMNS},position,ignore\r\n{rows[0]},1.5,\r\n".encode()


def _read_manifest(data: bytes, folder: Path, name: str = "manifest.csv") -> None:
    for image in ("images/0.png", "images/1.png", "images/2.png", *(f"images/{kind}.png" for kind in "abcd")):
        (folder / image).parent.mkdir(parents=True, exist_ok=True)
        (folder / image).touch()
    (folder / name).write_bytes(data)
    with suppress(UserError):
        read_cases(folder / name)
    load_cases(folder)


def _data_json_seeds(folder: Path) -> Iterator[bytes]:
    split = {"train": {"0": ["a.png", "b.png"]}, "test": {"0": ["c.png"], "1": ["d.png"]}}
    yield json.dumps(split).encode()


def _bundle(folder: Path, **files: bytes) -> None:
    """Load our small bundle with some of its files replaced."""
    from reshift.inference.bundle import load_bundle

    for name in ("config.json", "calibration.json", "model.safetensors"):
        content = files.get(name.partition(".")[0])
        (folder / name).write_bytes((FROZEN / name).read_bytes() if content is None else content)
    load_bundle(folder)


def _read_config(data: bytes, folder: Path) -> None:
    _bundle(folder, config=data)


def _read_calibration(data: bytes, folder: Path) -> None:
    """With a right checksum, or it would be refused before anything else is looked at."""
    from reshift.inference.bundle import _load_calibration

    with suppress(ValueError, RecursionError, AttributeError, TypeError):
        values = json.loads(data)
        values.pop("sha256", None)
        text = json.dumps(values, sort_keys=True)
        data = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), **values}).encode()
    (folder / "calibration.json").write_bytes(data)
    calibration = _load_calibration(folder)
    calibration.warnings()
    calibration.p_value(0.5)


def _read_weights(data: bytes, folder: Path) -> None:
    """The header is fuzzed; the weights behind it are ours."""
    whole = (FROZEN / "model.safetensors").read_bytes()
    size = int.from_bytes(whole[:8], "little")
    weights = data + whole[8 + size :]
    config = json.loads((FROZEN / "config.json").read_bytes())
    config["model_sha256"] = hashlib.sha256(weights).hexdigest()
    with patch("reshift.inference.bundle.build", return_value=_network()):  # weights replace its own, so it is built once
        _bundle(folder, config=json.dumps(config).encode(), model=weights)


@cache
def _network() -> "Detector":
    from reshift.inference.bundle import load_bundle

    return load_bundle(FROZEN).detector


def _weights_seeds(folder: Path) -> Iterator[bytes]:
    whole = (FROZEN / "model.safetensors").read_bytes()
    yield whole[: 8 + int.from_bytes(whole[:8], "little")]


def _file_seeds(name: str) -> Callable[[Path], Iterator[bytes]]:
    return lambda _: iter([(FROZEN / name).read_bytes()])


def _suite_seeds(folder: Path) -> Iterator[bytes]:
    yield f"{HEAD}{BRIGHTNESS}{SWEEP}".encode()
    for path in sorted((Path(__file__).parents[2] / "suites").glob("*.toml"))[:3]:
        yield path.read_bytes()


def _read_suite(data: bytes, folder: Path) -> None:
    from reshift.bench.suite import load_suite

    (folder / "suite.toml").write_bytes(data)
    load_suite(folder / "suite.toml")


TARGETS = {
    "raster": Target(_raster_seeds, _read_raster),
    "nifti": Target(_nifti_seeds, _read_nifti),
    "dicom": Target(_dicom_seeds, _read_dicom),
    "series": Target(_series_seeds, _read_series),
    "zip": Target(_zip_seeds, _read_zip),
    "manifest": Target(_manifest_seeds, _read_manifest),
    "data-json": Target(_data_json_seeds, lambda data, folder: _read_manifest(data, folder, "data.json")),
    "config": Target(_file_seeds("config.json"), _read_config),
    "calibration": Target(_file_seeds("calibration.json"), _read_calibration),
    "weights": Target(_weights_seeds, _read_weights),
    "suite": Target(_suite_seeds, _read_suite),
}


def empty(folder: Path) -> Path:
    """The folder, emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
