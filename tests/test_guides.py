"""Every command of the guides runs, on phantom data and a method that trains in no time; notebooks run as they are."""

import shlex
import shutil
from pathlib import Path

import nbformat
import numpy as np
import pytest
from dicom_files import series
from guides import DOCS, commands, save_files
from helpers import BRIGHTNESS, Cli
from nbclient import NotebookClient
from volumes import canonical_affine, save_nifti, stored

from reshift.data.phantom import draw, write_phantom

PLAIN = ((2, 1, 0), (False, False, False))  # how a volume is stored
ROOT = DOCS.parent
ELSEWHERE = {"cluster.md"}  # test_ray.py runs it, where Ray is running anyway
GUIDES = [DOCS / "start.md", *(page for page in sorted((DOCS / "guides").glob("*.md")) if page.name not in ELSEWHERE)]
SMALL = ("--set", "data.size=32", "--set", "model.epochs=2", "--set", "calibrate.features=off")  # for a method of one's own


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the guides take for granted, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path / "cache"))
    manifest = write_phantom(tmp_path, train=24, test_normal=6, test_abnormal=6, size=48)
    shutil.copy(manifest, "labelled.csv")
    train = [line.split(",")[0] for line in manifest.read_text().splitlines() if ",train," in line]
    for folder, names in (("healthy", train), ("healthy2", train[:8]), ("new", train[8:12])):
        Path(folder).mkdir()
        for name in names:
            shutil.copy(name, folder)
    Path("volumes").mkdir()
    for subject in range(4):
        save_volume(Path("volumes") / f"sub{subject}.nii.gz", subject)
    save_volume(Path("patient.nii.gz"), 9)
    mask = np.stack([draw("brain", 8, level, abnormal=True, size=48).mask for level in range(6)]).astype(np.float32)
    save_volume(Path("sick.nii.gz"), 8, abnormal=True)
    save_nifti(Path("lesion.nii.gz"), *stored(mask, PLAIN, canonical_affine(mask.shape)))
    Path("brain.csv").write_text("image,mask,subject,label,split\nsick.nii.gz,lesion.nii.gz,s8,1,test\n")
    series(Path("series") / "scan")
    shutil.copy(ROOT / "examples" / "linear_dae.py", ".")
    shutil.copytree(ROOT / "suites", "suites")
    return tmp_path


def save_volume(path: Path, subject: int, *, abnormal: bool = False) -> None:
    voxels = np.stack([draw("brain", subject, level, abnormal=abnormal, size=48).pixels for level in range(6)])
    save_nifti(path, *stored(voxels.astype(np.float32), PLAIN, canonical_affine(voxels.shape)))


@pytest.mark.usefixtures("in_process")  # the benchmark
def test_every_command_of_the_guides_runs(run_cli: Cli, data: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start comes first: it leaves what others share."""
    shutil.copytree(tiny_bundle, "runs/dicom/bundle")
    count = 0
    for page in GUIDES:
        save_files(page)
        for program, *args in commands(page):
            if program == "export":
                monkeypatch.setenv(*args[0].split("=", 1))
                continue
            assert program == "reshift", f"{page.name}: {program}"
            quick = () if args[0] != "train" else SMALL if "linear_dae:LinearDAE" in args else BRIGHTNESS
            done = run_cli(*args, *quick)
            assert done.code == 0, f"{page.name}: {shlex.join(args)}: {done.err}{done.out}"
            count += 1
    assert count >= 30
    for left in (
        "check/check.html",
        "first/evaluation/report.html",
        "brain/scores/overlays/patient.png",
        "first/scores/scores.jsonl",
        "compare/compare.html",
        "tables/tables.md",
    ):
        assert (data / "runs" / left).is_file(), left
    assert "| mine |" in (data / "runs" / "tables" / "tables.md").read_text()
    assert list((data / "runs" / "dicom" / "scores" / "dicom").rglob("mask.dcm"))
    assert (data / "models" / "brains" / "config.json").is_file()


@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run_and_are_stored_without_output(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.get("outputs")]
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
