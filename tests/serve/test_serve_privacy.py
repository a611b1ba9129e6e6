"""A series full of patient data, uploaded: canaries are in the DICOM files of its job, and nowhere else."""

from pathlib import Path

import pytest
from canaries import full_series, leaks
from servers import serving


@pytest.mark.filterwarnings("ignore::UserWarning:pydicom")
def test_canaries_stay_in_dicom_files(tiny_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason="reshift[dicom] is not installed")
    full_series(tmp_path / "in", 3)
    files = [(path.name, path.read_bytes()) for path in sorted((tmp_path / "in").glob("*.dcm"))]
    store = tmp_path / "store"
    with serving("--models", tiny_bundle.parent, "--store", store, "--rate", 0) as server:
        job = server.submit(*files, dicom="true")
        assert server.ended(job)["state"] == "done"
        said = [server.http.get(f"/api/v1{path}").text for path in ("/jobs", f"/jobs/{job}", f"/jobs/{job}/cases", "/metrics")]
        server.process.terminate()
        said += server.process.communicate(timeout=60)
    assert any(store.rglob("mask.dcm"))
    assert leaks(store, "".join(said), allowed=(".dcm",)) == []
