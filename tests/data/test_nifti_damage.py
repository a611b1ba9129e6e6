"""NIfTI files with random headers and bytes are read, or refused in one line; no hang, no huge allocation."""

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from volumes import AFFINE, FIELDS, NATIVE, save_nifti

from reshift.data.nifti import read_nifti
from reshift.errors import UserError


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_nifti(tmp_path_factory.mktemp("fuzz") / "a.nii", NATIVE, AFFINE)


def survives(path: Path) -> None:
    """Read it, or refuse it in one line; in bounded memory."""
    refusal = f"{path}"
    tracemalloc.start()
    try:
        volume = read_nifti(path)
        assert volume.foreground_slices(0.1)
        assert np.isfinite(volume.plane(0)).all()
        assert np.isfinite(volume.window).all()
    except UserError as err:
        refusal = str(err)
    finally:
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
        tracemalloc.stop()
    assert refusal.startswith(str(path))
    assert "\n" not in refusal


NUMBERS = {"h": st.integers(-(2**15), 2**15 - 1), "i": st.integers(-(2**31), 2**31 - 1), "f": st.floats(width=32)}
SMALL = {"h": st.integers(-1, 9), "i": st.integers(348, 349), "f": st.sampled_from([0.0, 1.0, -1.0, 2.0, 352.0, 1e-30, 1e30])}


@settings(max_examples=150, deadline=2000, suppress_health_check=list(HealthCheck))
@given(data=st.data(), packed=st.booleans())
def test_any_header_is_read_or_refused(template: Path, data: st.DataObject, packed: bool) -> None:
    content = bytearray(template.read_bytes())
    for name in data.draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=4)):
        at, kind = FIELDS[name]
        if name == "magic":
            content[at : at + 4] = data.draw(st.sampled_from([b"n+1\0", b"ni1\0", b"n+2\0", b"\xff\xff\xff\xff"]))
            continue
        which = data.draw(st.integers(0, int(kind[:-1] or 1) - 1))
        value = data.draw(st.one_of(NUMBERS[kind[-1]], SMALL[kind[-1]]))
        struct.pack_into(f"<{kind[-1]}", content, at + which * struct.calcsize(kind[-1]), value)
    path = template.with_name("fuzz.nii.gz" if packed else "fuzz.nii")
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    survives(path)


@settings(max_examples=120, deadline=2000, suppress_health_check=list(HealthCheck))
@given(data=st.data(), packed=st.booleans())
def test_any_damage_is_read_or_refused(template: Path, data: st.DataObject, packed: bool) -> None:
    content = bytearray(gzip.compress(template.read_bytes(), 1) if packed else template.read_bytes())
    for at in data.draw(st.lists(st.integers(0, 400), max_size=8)):
        content[at] ^= data.draw(st.integers(1, 255))
    keep = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path = template.with_name("fuzz.nii")
    path.write_bytes(content[:keep])
    survives(path)
