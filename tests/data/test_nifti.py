"""NIfTI: values and positions agree with nibabel; every refusal is one line."""

import gzip
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from volumes import AFFINE, FIELDS, NATIVE, canonical_affine, head, orientations, save_head, save_nifti, stored

from reshift.data import nifti
from reshift.data.nifti import blank_map, is_nifti, read_nifti, write_nifti
from reshift.data.read import open_input, open_volume, read_image
from reshift.data.volume import Volume, canonical
from reshift.errors import UserError

RAW = sorted(Path(os.environ.get("RESHIFT_RAW", Path(__file__).parents[3] / "shared" / "raw")).glob("*.nii.gz"))


def patched(path: Path, **fields: Any) -> Path:
    """Overwrite header fields of a plain .nii."""
    content = bytearray(path.read_bytes())
    for name, value in fields.items():
        at, kind = FIELDS[name]
        struct.pack_into(f"<{kind}", content, at, *(value if isinstance(value, tuple) else (value,)))
    path.write_bytes(content)
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return save_nifti(tmp_path / "a.nii", NATIVE, AFFINE)


def loaded(path: Path) -> Any:
    return nibabel.load(path)


def agrees(path: Path) -> Volume:
    """Compare the value and position of every voxel with nibabel."""
    ours, theirs = read_nifti(path), loaded(path)
    real = np.stack([ours.plane(k) for k in range(len(ours))])
    expected = np.squeeze(theirs.get_fdata(), axis=tuple(range(3, theirs.ndim))).reshape(ours.native_shape)
    np.testing.assert_allclose(ours.to_native(real), expected, rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(ours.native_affine, theirs.affine)
    return ours


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".NII.GZ"])
@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", ">i2", "u2", "i4", "u4", "i8", "u8", "f4", ">f4", "f8"])
def test_every_voxel_type(tmp_path: Path, dtype: str, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    image = nibabel.Nifti1Image(np.clip(NATIVE, 0, 127).astype(dtype), AFFINE, dtype=np.dtype(dtype))
    (tmp_path / "raw.nii").write_bytes(image.to_bytes())
    content = (tmp_path / "raw.nii").read_bytes()
    path.write_bytes(gzip.compress(content) if suffix.lower().endswith(".gz") else content)
    volume = agrees(path) if suffix != ".NII.GZ" else read_nifti(path)
    assert volume.bits == {"u1": 8, "u2": 16}.get(dtype, 32)


def test_every_storage_order(tmp_path: Path) -> None:
    for i, orientation in enumerate(orientations()):
        volume = agrees(save_head(tmp_path / f"{i}.nii", orientation=orientation))
        np.testing.assert_array_equal(volume.voxels, head().astype(np.int16))


@pytest.mark.parametrize(
    ("codes", "kind"), [((0, 0), "base"), ((1, 0), "q"), ((0, 2), "s"), ((4, 1), "s"), ((1, 99), "q"), ((9, -3), "base")]
)
def test_which_transform_is_used(plain: Path, codes: tuple[int, int], kind: str) -> None:
    half = (0.5, 0.1, 0.2, 11.0, 12.0, 13.0)
    patched(plain, qform_code=codes[0], sform_code=codes[1], quatern=half)
    volume = agrees(plain)
    at = {"q": [11.0, 12.0, 13.0], "s": AFFINE[:3, 3]}.get(kind)
    assert at is None or volume.native_affine[:3, 3] == pytest.approx(at)


@pytest.mark.parametrize("slope", [0.0, 1.0, -2.5, float("nan"), float("inf"), 2**-9])
@pytest.mark.parametrize("pixdim0", [1.0, -1.0, 0.0, 7.0])
def test_slope_and_handedness(plain: Path, slope: float, pixdim0: float) -> None:
    patched(plain, scl_slope=slope, scl_inter=-30.0, sform_code=0, qform_code=1, pixdim=(pixdim0, 1, 2, 3, 1, 0, 0, 0))
    volume = agrees(plain)
    assert (volume.slope, volume.intercept) == ((slope, -30.0) if slope and np.isfinite(slope) else (1.0, 0.0))


def test_other_shapes_and_headers(tmp_path: Path) -> None:
    one = save_nifti(tmp_path / "one.nii.gz", NATIVE[..., None, None], AFFINE)  # 5-D, one volume
    assert agrees(one).native_shape == NATIVE.shape
    flat = save_nifti(tmp_path / "flat.nii", NATIVE[:, :, 0], AFFINE)
    assert len(agrees(flat)) == 1
    patched(flat, dim=(3, *NATIVE.shape[:2], 1, 1, 1, 1, 1), sform_code=0, qform_code=0, pixdim=(1, 1, 1, 0, 0, 0, 0, 0))
    assert len(agrees(flat)) == 1  # the slice distance of a single slice does not matter
    second = tmp_path / "two.nii.gz"
    nibabel.Nifti2Image(NATIVE, AFFINE).to_filename(second)
    agrees(second)
    with_extension = nibabel.Nifti1Image(NATIVE, AFFINE)
    with_extension.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"hello" * 50))
    with_extension.to_filename(tmp_path / "ext.nii.gz")
    agrees(tmp_path / "ext.nii.gz")
    (tmp_path / "hidden.nii").write_bytes((tmp_path / "ext.nii.gz").read_bytes())  # gzipped despite its name
    np.testing.assert_array_equal(read_nifti(tmp_path / "hidden.nii").voxels, read_nifti(tmp_path / "ext.nii.gz").voxels)


def test_a_plain_file_is_memory_mapped_and_a_large_gzipped_one_goes_to_disk(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_mapped(array: Any) -> bool:
        return isinstance(array, np.memmap) or (array is not None and is_mapped(array.base))

    assert is_mapped(read_nifti(plain).voxels)
    packed = save_nifti(tmp_path / "a.nii.gz", NATIVE, AFFINE)
    assert not is_mapped(read_nifti(packed).voxels)
    monkeypatch.setattr(nifti, "MAX_IN_MEMORY", 1000)
    volume = agrees(packed)
    with blank_map(volume, tmp_path) as maps:
        assert is_mapped(maps)
        assert np.isnan(maps).all()
        maps[2] = 1.0
        write_nifti(tmp_path / "map.nii.gz", volume.to_native(maps), volume)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nii", "a.nii.gz", "map.nii.gz"]


@pytest.mark.skipif(not RAW, reason="no real volumes here; RESHIFT_RAW names a folder of .nii.gz files")
@pytest.mark.parametrize("path", RAW, ids=lambda p: p.name)
def test_real_files(path: Path) -> None:
    volume = agrees(path)
    assert 0 < len(volume.foreground_slices(0.1)) <= len(volume)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"dim": (4, 10, 12, 5, 7, 1, 1, 1)}, "holds 7 volumes .it is 10×12×5×7.*one volume per file.*four_to_three"),
    ({"dim": (5, 10, 12, 5, 1, 3, 1, 1)}, "holds 3 volumes"),
    ({"dim": (3, 10, 0, 5, 1, 1, 1, 1)}, r"the size is \[10, 0, 5\]; damaged"),
    ({"dim": (3, 10, -4, 5, 1, 1, 1, 1)}, "damaged"),
    ({"dim": (0, 1, 1, 1, 1, 1, 1, 1)}, "damaged"),
    ({"dim": (1, 99, 1, 1, 1, 1, 1, 1)}, "damaged"),
    ({"dim": (3, 10000, 10000, 10000, 1, 1, 1, 1)}, "10000×10000×10000 voxels, over the limit"),
    ({"dim": (3, 1000, 1000, 1000, 1, 1, 1, 1)}, "promises 2,000,000,352 bytes, the file is too small"),
    ({"datatype": 32, "bitpix": 64}, "complex numbers, not grey values"),
    ({"datatype": 128, "bitpix": 24}, "are colour, not grey"),
    ({"datatype": 2304, "bitpix": 32}, "are colour, not grey"),
    ({"datatype": 1, "bitpix": 1}, "unknown voxel type 1;"),
    ({"datatype": 77}, "unknown voxel type 77"),
    ({"scl_slope": 2.0, "scl_inter": float("nan")}, "scl_inter is nan"),
    ({"vox_offset": float("nan")}, "voxels at byte nan"),
    ({"vox_offset": 17.0}, "voxels at byte 17"),
    ({"vox_offset": 1e30}, "voxels at byte 1e.30"),
    ({"vox_offset": 5e6}, "the file is too small"),
    ({"sform_code": 0, "pixdim": (1, 1, 0, 1, 0, 0, 0, 0)}, "its voxels are 1×0×1 mm; a spacing must be above zero"),
    ({"sform_code": 0, "pixdim": (1, 1, -2, 1, 0, 0, 0, 0)}, "1×-2×1 mm"),
    ({"sform_code": 0, "pixdim": (1, 1, float("nan"), 1, 0, 0, 0, 0)}, "1×nan×1 mm"),
    ({"srow": (0.0,) * 12}, "its orientation is not valid"),
    ({"srow": (float("inf"),) * 12}, "its orientation is not valid"),
    ({"sform_code": 0, "qform_code": 1, "quatern": (9.0, 9.0, 9.0, 0.0, 0.0, 0.0)}, "cannot be read|not valid"),
    ({"magic": b"ni1\0"}, "a pair of files"),
    ({"magic": b"\0\0\0\0"}, "not a NIfTI file .it may be Analyze"),
    ({"sizeof_hdr": 349}, "not a NIfTI file"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), MISTAKES, ids=[str(fields) for fields, _ in MISTAKES])
def test_mistakes(plain: Path, tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    patched(plain, **fields)
    packed = tmp_path / "b.nii.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        tracemalloc.start()
        with pytest.raises(UserError, match=expected) as caught:
            read_nifti(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
        tracemalloc.stop()
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_nan(tmp_path: Path, value: float) -> None:
    array = NATIVE.astype(np.float64)
    array[3, 4, 2] = value
    with pytest.raises(UserError, match=r"contains NaN or infinite voxels \(in plane 2 of its last axis\); replace them"):
        read_nifti(save_nifti(tmp_path / "a.nii.gz", array, AFFINE, np.float64))


def test_files_cut_short(plain: Path, tmp_path: Path) -> None:
    whole, packed = plain.read_bytes(), gzip.compress(plain.read_bytes())
    broken = bytearray(packed)
    broken[-6] ^= 1  # the checksum
    for name, content in {
        "empty.nii": b"", "empty.nii.gz": b"", "text.nii": b"not an image", "header.nii": whole[:200],
        "half.nii": whole[: len(whole) // 2],
        "half.nii.gz": packed[: len(packed) // 2], "start.nii.gz": packed[:20], "sum.nii.gz": bytes(broken),
        "short.nii.gz": gzip.compress(whole[:-1]), "none.nii.gz": gzip.compress(b""),
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"(?i){name}: .*(copy|replace)"):
            read_nifti(tmp_path / name)
    with pytest.raises(UserError, match=r"no.nii: no such file"):
        read_nifti(tmp_path / "no.nii")
    with pytest.raises(UserError, match="not a regular file"):
        read_nifti(tmp_path)


def test_the_map_has_the_files_own_geometry(tmp_path: Path) -> None:
    for i, orientation in enumerate(orientations()):
        array, affine = stored(head(), orientation, canonical_affine())
        image = nibabel.Nifti1Image(array.astype(np.int16), affine)
        image.set_sform(affine, 4)
        image.set_qform(np.diag([2.0, 3.0, 4.0, 1.0]), 2)  # two different transforms, as in registered files
        for name in ("descrip", "db_name", "aux_file", "intent_name"):
            image.header[name] = b"secret"
        image.to_filename(tmp_path / f"{i}.nii.gz")
        volume = read_nifti(tmp_path / f"{i}.nii.gz")
        write_nifti(tmp_path / "map.nii.gz", volume.to_native(head()), volume)
        written = loaded(tmp_path / "map.nii.gz")
        assert written.get_data_dtype() == np.float32
        np.testing.assert_array_equal(written.get_fdata(dtype=np.float32), array)
        for name in ("get_sform", "get_qform"):
            (ours, code), (theirs, expected) = getattr(written, name)(coded=True), getattr(image, name)(coded=True)
            np.testing.assert_array_equal(ours, theirs)
            assert code == expected
        assert b"secret" not in gzip.decompress((tmp_path / "map.nii.gz").read_bytes())


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Header, nibabel.Nifti2Header])
def test_no_text_of_a_header_reaches_a_map(tmp_path: Path, kind: Any, order: str) -> None:
    """Every field that is not about the grid is filled with text, and an extension follows the header."""
    header = kind(endianness=order)
    for name in header.keys():  # noqa: SIM118 (a header's own iteration is over bytes)
        if header[name].dtype.kind == "S" and name != "magic":
            header[name] = b"secret"[: header[name].dtype.itemsize]
    make: Any = nibabel.Nifti1Image if kind is nibabel.Nifti1Header else nibabel.Nifti2Image
    image = make(NATIVE.astype(np.int16), AFFINE, header)
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"secret"))
    image.header["toffset"], image.header["intent_p1"], image.header["pixdim"][5] = 123.0, 45.0, 67.0
    image.to_filename(tmp_path / "a.nii")
    assert b"secret" in (tmp_path / "a.nii").read_bytes()
    volume = read_nifti(tmp_path / "a.nii")
    write_nifti(tmp_path / "map.nii", NATIVE.astype(np.float32), volume)
    assert b"secr" not in (tmp_path / "map.nii").read_bytes()
    written = loaded(tmp_path / "map.nii").header
    assert (float(written["toffset"]), float(written["intent_p1"]), float(written["pixdim"][5])) == (0.0, 0.0, 1.0)
    np.testing.assert_array_equal(loaded(tmp_path / "map.nii").affine, loaded(tmp_path / "a.nii").affine)


def test_a_map_of_a_volume_that_is_not_nifti(tmp_path: Path) -> None:
    volume = canonical(NATIVE, AFFINE, source=tmp_path)
    write_nifti(tmp_path / "a.nii.gz", NATIVE, volume)
    first = (tmp_path / "a.nii.gz").read_bytes()
    assert first[4:8] == bytes(4)  # no date in it
    written = loaded(tmp_path / "a.nii.gz")
    np.testing.assert_allclose(written.affine, AFFINE, atol=1e-5)
    np.testing.assert_array_equal(written.get_fdata(dtype=np.float32), NATIVE)
    write_nifti(tmp_path / "a.nii.gz", NATIVE, volume)
    assert (tmp_path / "a.nii.gz").read_bytes() == first
    write_nifti(tmp_path / "a.nii", volume.to_native(np.ascontiguousarray(volume.voxels)), volume)
    assert loaded(tmp_path / "a.nii").shape == NATIVE.shape


def test_opening_by_name(plain: Path, tmp_path: Path) -> None:
    assert is_nifti(Path("x.NII.gz"))
    assert not is_nifti(Path("x.gz"))
    volume = open_input(plain)
    assert isinstance(volume, Volume)
    assert read_image(plain, 2).pixels.shape == (*volume.voxels.shape[1:], 1)
    assert open_volume(plain) is open_volume(plain)
    with pytest.raises(UserError, match=r"a volume of 5 slices, not one image; 'reshift score' takes volumes"):
        read_image(plain)
    with pytest.raises(UserError, match="slices are 8×9 pixels, too small; at least 16×16"):
        open_input(save_nifti(tmp_path / "small.nii", NATIVE[:8, :9], AFFINE))
