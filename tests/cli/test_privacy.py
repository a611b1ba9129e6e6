"""Scans full of patient data through every command: canaries are in the DICOM results that must carry them, and nowhere else.

Paths are the user's own words and are repeated; they hold no canary here.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pydicom
import pytest
from canaries import CANARY, UID, fill, full_nifti, full_series, leaks
from dicom_files import ct, grey, values, write
from helpers import BRIGHTNESS, Cli

# PS3.3 patient and general study modules: a PACS files results by them.
CARRIED = {
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "IssuerOfPatientID", "OtherPatientIDs", "EthnicGroup"),
    *("PatientComments", "PatientAddress", "PatientTelephoneNumbers", "Occupation", "AdditionalPatientHistory", "PatientAge"),
    *("PatientMotherBirthName", "PatientReligiousPreference", "MilitaryRank", "CountryOfResidence", "RegionOfResidence"),
    *("ReferringPhysicianName", "PhysiciansOfRecord", "AccessionNumber", "StudyID", "StudyDate", "StudyTime", "StudyDescription"),
    "StudyInstanceUID",
}
REFERENCES = {"ReferencedSOPInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID", "UID"}  # to the images, in the same study

# Training that streams uses the cache of prepared images; noise has findings at a low threshold.
STREAMED = ("--set", "data.memory_gb=0.000001", "--set", "calibrate.pixel_quantile=0.9")


class Commands:
    """Runs commands and keeps all that they print."""

    def __init__(self, run_cli: Cli, root: Path) -> None:
        self.run_cli, self.root, self.said = run_cli, root, ""

    def __call__(self, *args: object, codes: tuple[int, ...] = (0,)) -> None:
        done = self.run_cli(*args)
        self.said += done.out + done.err
        assert done.code in codes, done


@pytest.fixture
def commands(run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The caches are on, and lie where they are searched."""
    (tmp_path / "made").mkdir()
    for name in ("RESHIFT_CACHE", "XDG_CACHE_HOME", "TMPDIR", "HOME"):
        folder = tmp_path / "made" / name.lower()
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("RESHIFT_PREPARED_GB", "1")
    monkeypatch.chdir(tmp_path / "made")
    return Commands(run_cli, tmp_path / "made")


def data(root: Path) -> Path:
    """Series and volumes to learn from, and to test with; a manifest, since series need labels."""
    rows = ["image,mask,subject,label,split,note"]
    for i in range(3):
        full_series(root / f"ct{i}", 3, SeriesNumber=i)
        full_nifti(root / f"head{i}.nii.gz", i)
        rows += [f"ct{i},,s{i},0,{'train' if i < 2 else 'test'},", f"head{i}.nii.gz,,h{i},0,{'train' if i < 2 else 'test'},"]
    lesion = root / "lesion.nii.gz"
    full_nifti(root / "sick.nii.gz", 9, lesion=True)
    _mask(root / "sick.nii.gz", lesion)
    rows.append("sick.nii.gz,lesion.nii.gz,sick,1,test,")
    (root / "manifest.csv").write_text("\n".join(rows) + "\n")
    return root / "manifest.csv"


def _mask(image: Path, path: Path) -> None:
    import nibabel

    array = np.zeros((24, 24, 4), dtype=np.uint8)
    array[6:12, 6:12, 1:3] = 1
    loaded: nibabel.Nifti1Image = nibabel.load(image)  # type: ignore[assignment]
    nibabel.Nifti1Image(array, loaded.affine).to_filename(path)


def odd_files(folder: Path) -> None:
    """What cannot be scored, or only with a warning: errors and notes must not quote it either."""
    write(fill(ct(values(), Rows=None, SeriesInstanceUID=f"{UID}.5")), folder / "no-rows.dcm")
    write(fill(grey(values(), stored=12, PixelData=None, SeriesInstanceUID=f"{UID}.6")), folder / "no-pixels.dcm")
    film = grey(values(), stored=12, PatientSex=CANARY, StudyTime=CANARY, SeriesInstanceUID=f"{UID}.7")
    write(fill(film), folder / "film.dcm")
    (folder / "cut.dcm").write_bytes((folder / "film.dcm").read_bytes()[:900])
    (folder / "cut.nii.gz").write_bytes((folder.parent / "head0.nii.gz").read_bytes()[:300])


@pytest.mark.filterwarnings("ignore::UserWarning:pydicom")
def test_canaries_stay_in_the_dicom_objects_that_need_them(commands: Commands, tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason="reshift[dicom] is not installed")
    manifest, made = data(tmp_path / "in"), commands.root
    odd_files(tmp_path / "in" / "odd")
    bundle = made / "run" / "bundle"
    commands("check", manifest, "--out", made / "check", codes=(0, 3))
    commands("check", tmp_path / "in" / "odd", "--json", codes=(0, 2, 3))
    commands("train", "--data", manifest, "--out", made / "run", *BRIGHTNESS, *STREAMED)
    commands("calibrate", bundle, "--data", manifest)
    commands("info", bundle)
    commands("info", bundle, "--json")
    every = ("--dicom-out", "--preview", "--min-diameter", 1)
    scans = [tmp_path / "in" / name for name in ("ct2", "sick.nii.gz", "odd")]
    commands("score", bundle, *scans, "--out", made / "score", *every, codes=(3,))
    commands("score", bundle, scans[0], "--out", made / "anonymous", *every, "--anonymise", tmp_path / "key")
    commands("evaluate", bundle, "--data", manifest, "--out", made / "one")
    shutil.copytree(made / "one", made / "two")
    commands("compare", made / "one", made / "two", "--out", made / "compare")
    commands("figures", made / "one", "--out", made / "figures")
    commands("push", bundle, f"{made}/pushed")
    commands("pull", f"{made}/pushed", "--out", made / "pulled")
    commands("doctor", codes=(0, 3))
    commands("cache", "list")
    assert any((made / "reshift_cache").rglob("*"))
    assert leaks(made, commands.said, allowed=(".dcm",)) == []
    assert leaks(made / "anonymous", "") == []
    assert leaks(made / "run", "") == []
    exported = [path for path in sorted((made / "score" / "dicom").rglob("*.dcm")) if path.is_file()]
    assert {path.name.split("-")[0] for path in exported} == {"mask.dcm", "map.dcm", "report.dcm", "overlay"}
    for path in exported:
        assert {name for name, value in elements(path) if CANARY.upper() in value.upper()} <= CARRIED, path.name
        assert {name for name, value in elements(path) if UID in value} <= CARRIED | REFERENCES, path.name
        assert str(pydicom.dcmread(path).PatientID).startswith(CANARY)
    scored = [json.loads(line) for line in (made / "score" / "scores.jsonl").read_text().splitlines()]
    assert {Path(record["input"]).name for record in scored if record["findings"]} >= {"sick.nii.gz"}
    assert any(record["map"] == "maps/odd/film.dcm.npy" for record in scored)
    assert len([record for record in scored if record["error"]]) >= 3


def elements(path: Path) -> list[tuple[str, str]]:
    return [
        (element.keyword, str(element.value))
        for element in pydicom.dcmread(path).iterall()
        if element.VR not in ("SQ", "OB", "OW")
    ]


def test_the_search_finds_a_canary_however_it_is_packed(tmp_path: Path) -> None:
    import base64
    import gzip

    (tmp_path / "a.gz").write_bytes(gzip.compress(CANARY.encode()))
    (tmp_path / "b.html").write_bytes(
        b"<img src='data:image/png;base64," + base64.b64encode(b"x" * 60 + CANARY.encode() + b"x" * 60)
    )
    np.savez_compressed(tmp_path / "c.npz", text=np.frombuffer(CANARY.encode(), np.uint8))
    (tmp_path / f"{CANARY}.txt").write_text("")
    (tmp_path / "clean.txt").write_text("nothing")
    assert leaks(tmp_path, f"and {CANARY}") == ["output", f"name {CANARY}.txt", "a.gz", "b.html", "c.npz"]
