"""``reshift serve`` as its users see it: a real server, real files, one job after another."""

import gzip
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers import noise, read_records, run_process
from numpy.typing import NDArray
from PIL import Image
from servers import Server, serving

from reshift.data.nifti import read_nifti
from reshift.serve.client import Client
from reshift.serve.reviews import as_csv


def png(seed: int = 0, height: int = 24, width: int = 32) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise(seed, height, width)).save(buffer, "png")
    return buffer.getvalue()


def nifti(path: Path, shape: tuple[int, int, int] = (20, 24, 6)) -> bytes:
    import nibabel

    voxels = np.random.default_rng(0).integers(1, 200, shape).astype(np.uint8)
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([1.0, 1.0, 2.0, 1.0])), path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that jobs may name."""
    data = tmp_path_factory.mktemp("data")
    (data / "scans").mkdir()
    for i in range(3):
        (data / "scans" / f"{i}.png").write_bytes(png(i))
    (data.parent / "secret.png").write_bytes(png(9))
    (data / "link.png").symlink_to(data.parent / "secret.png")
    return data


@pytest.fixture(scope="module")
def server(tiny_bundle: Path, folder: Path) -> Iterator[Server]:
    with serving("--models", tiny_bundle.parent, "--data", folder, "--max-files", 40, "--max-upload", "8M") as found:
        yield found


def values(server: Server, url: str) -> tuple[NDArray[np.uint16], float, float]:
    answer = server.http.get(url)
    assert answer.status_code == 200, answer.text
    shape = [int(n) for n in answer.headers["x-shape"].split(",")]
    return (
        np.frombuffer(answer.content, "<u2").reshape(shape),
        float(answer.headers["x-scale"]),
        float(answer.headers["x-offset"]),
    )


def test_an_image_gets_what_the_command_line_gives(server: Server, tiny_bundle: Path, tmp_path: Path) -> None:
    job = server.submit(("brain.png", png(3)), model="bundle")
    done = server.ended(job)
    assert (done["state"], done["cases"], done["done"], done["failures"]) == ("done", 1, 1, 0)
    [case] = server.cases(job)
    (tmp_path / "brain.png").write_bytes(png(3))
    assert run_process("score", tiny_bundle, tmp_path / "brain.png", "--out", tmp_path / "out").code == 0
    [record] = read_records(tmp_path / "out")
    assert [case[name] for name in ("score", "p_value", "flag", "sha256")] == [
        record[name] for name in ("score", "p_value", "flag", "sha256")
    ]
    heatmap = np.load(tmp_path / "out" / record["map"])
    with Client(server.url) as client:
        np.testing.assert_array_equal(client.heatmap(case), heatmap)
    assert server.http.get(f"{case['url']}/map?format=png").content == (tmp_path / "out/overlays/brain.png").read_bytes()
    levels, scale, offset = values(server, f"{case['url']}/heat")
    inside = levels[:, :, 0] != 65535
    np.testing.assert_array_equal(inside, np.isfinite(heatmap))
    np.testing.assert_allclose(levels[inside, 0] * scale + offset, heatmap[inside], atol=scale)
    levels, scale, offset = values(server, f"{case['url']}/image")
    np.testing.assert_allclose(levels[:, :, 0] * scale + offset, noise(3), atol=scale)
    assert values(server, f"{case['url']}/prepared")[0].shape == (32, 32, 1)
    shown = Image.open(io.BytesIO(server.http.get(f"{case['url']}/thumbnail.png?side=16").content))
    assert shown.size == (16, 12)
    packed = server.http.get(f"{case['url']}/map?format=nifti").content
    (tmp_path / "map.nii").write_bytes(gzip.decompress(packed))
    assert server.http.get(f"{case['url']}/restoration").json()["detail"] == "this model's method restores no images"


def test_a_volume_in_three_planes(server: Server, tmp_path: Path) -> None:
    content = nifti(tmp_path / "v.nii.gz")
    job = server.submit(("v.nii.gz", content))
    assert server.ended(job)["state"] == "done"
    [case] = server.cases(job)
    about = server.http.get(case["url"]).json()
    volume = read_nifti(tmp_path / "v.nii.gz")
    assert case["volume"]
    assert about["grid"]["shape"] == list(volume.voxels.shape) == [6, 24, 20]
    for row in about["slice_scores"]:
        assert volume.native_index(row["index"]) == row["slice"]
    for plane, index, expected in (
        ("axial", 2, volume.voxels[2]),
        ("coronal", 5, volume.voxels[::-1, 5, :]),
        ("sagittal", 7, volume.voxels[::-1, :, 7]),
    ):
        levels, scale, offset = values(server, f"{case['url']}/image?plane={plane}&index={index}")
        np.testing.assert_allclose(levels[:, :, 0] * scale + offset, expected, atol=scale)
        assert values(server, f"{case['url']}/heat?plane={plane}&index={index}")[0].shape == levels.shape
    refused = server.http.get(f"{case['url']}/image?index=6")
    assert (refused.status_code, refused.json()["detail"]) == (422, "axial slice 6 is not one of 0 to 5")
    assert len(server.http.get(f"{case['url']}/map?format=nifti").content) > 100


def test_a_zip_becomes_its_files_and_bad_ones_are_recorded(server: Server) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a/one.png", png(1))
        archive.writestr("a/two.png", b"no picture")
        archive.writestr("manifest.csv", "image\n/etc/passwd\n")
    job = server.submit(("set.zip", packed.getvalue()), ("three.png", png(3)))
    done = server.ended(job)
    assert (done["state"], done["cases"], done["failures"]) == ("done", 3, 1)
    cases = {case["name"]: case for case in server.cases(job)}
    assert sorted(cases) == ["set/a/one.png", "set/a/two.png", "three.png"]
    assert cases["set/a/two.png"]["error"].startswith("set/a/two.png: not a PNG")
    assert server.http.get(f"{cases['set/a/two.png']['url']}/heat").status_code == 409
    by_score = server.get(f"/jobs/{job}/cases", sort="score", limit=1)
    assert by_score["items"][0]["score"] == max(case["score"] or 0 for case in cases.values())
    assert (by_score["total"], by_score["next"]) == (3, 1)
    assert [case["name"] for case in server.get(f"/jobs/{job}/cases", error=True)["items"]] == ["set/a/two.png"]
    text = server.http.get(f"/api/v1/jobs/{job}/scores.jsonl").text
    assert {json.loads(line)["input"] for line in text.splitlines()} == set(cases)


def test_paths_stay_below_the_data_folder(server: Server) -> None:
    made = server.http.post("/api/v1/jobs/from-path", json={"path": "scans", "model": "bundle"})
    assert made.status_code == 201
    assert server.ended(made.json()["id"])["cases"] == 3
    for path in ("../secret.png", "link.png", "/etc/passwd", "scans/../../secret.png", ".reshift-serve", "no", "a\0b"):
        refused = server.http.post("/api/v1/jobs/from-path", json={"path": path, "model": "bundle"})
        assert refused.status_code == 422
        assert "no such file or folder in the server's --data" in refused.json()["detail"]


def test_reviews(server: Server) -> None:
    job = server.submit(("a.png", png(1)))
    server.ended(job)
    [case] = server.cases(job)
    sent = {"verdict": "reject", "note": "=cmd()", "rating": 2, "reviewer": "Ann"}
    assert server.http.put(f"{case['url']}/review", json=sent).status_code == 200
    [reviewed] = server.get(f"/jobs/{job}/cases", reviewed=True)["items"]
    assert {name: reviewed["review"][name] for name in sent} == sent
    table = server.http.get(f"/api/v1/jobs/{job}/reviews.csv").text.splitlines()
    assert "reject,2,'=cmd(),Ann," in table[1]
    assert server.http.put(f"{case['url']}/review", json={"verdict": "maybe"}).status_code == 422
    assert server.http.delete(f"{case['url']}/review").status_code == 204
    assert server.http.delete(f"{case['url']}/review").status_code == 404
    assert as_csv([{"note": "+1"}]).splitlines()[1].count("'+1") == 1


def test_a_key_gives_one_job(server: Server) -> None:
    first = server.post(("a.png", png(1)), headers={"Idempotency-Key": "k1"})
    again = server.post(("a.png", png(1)), headers={"Idempotency-Key": "k1"})
    other = server.post(("a.png", png(2)), headers={"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 422)
    assert first.json()["id"] == again.json()["id"]


def test_deleted_means_gone(server: Server, folder: Path) -> None:
    marker = png(77)
    job = server.submit(("Doe_John.png", marker))
    server.ended(job)
    assert server.http.delete(f"/api/v1/jobs/{job}").status_code == 204
    assert server.get(f"/jobs/{job}", 404)["detail"] == "no such job; it may have been deleted"
    store = folder / ".reshift-serve"
    assert not [path for path in store.rglob("*") if job in path.name]
    for path in store.rglob("*"):
        if path.is_file() and path.name != "audit.jsonl":
            content = path.read_bytes()
            assert marker not in content
            assert b"Doe_John" not in content
            assert job.encode() not in content, path
    assert "Doe_John" not in (store / "audit.jsonl").read_text()


def test_model_cards_and_the_page(server: Server) -> None:
    [model] = server.get("/models")["items"]
    card = server.get(f"/models/{model['name']}")
    assert (card["method"], card["error"]) == ("brightness", None)
    assert card["heat_scale"] > 0
    assert "# Reshift bundle" in card["card"]
    assert "no model 'x'" in server.get("/models/x", 404)["detail"]
    for path in ("/", "/docs", "/page/app.js", "/page/style.css"):
        answer = server.http.get(path)
        assert answer.status_code == 200
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert not any(word in answer.text for word in ("<style", " style=", " onclick=", "http://", "https://"))
    assert server.http.get("/page/..%2fapp.py").status_code == 404
    assert "reshift_jobs_total" in server.http.get("/metrics").text


def test_evaluations(server: Server, folder: Path) -> None:
    from helpers import labelled

    labelled(folder / "labelled")
    made = server.http.post("/api/v1/evaluations", json={"path": "labelled", "model": "bundle"})
    assert made.status_code == 201, made.text
    job = made.json()["id"]
    assert server.ended(job)["state"] == "done"
    assert server.get(f"/evaluations/{job}")["metrics"]["n"]["abnormal"] == 4
    report = server.http.get(f"/api/v1/evaluations/{job}/report.html")
    assert report.headers["content-security-policy"].startswith("sandbox")


def test_the_notebook(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells, one after another; a kernel would only cost time."""
    monkeypatch.setenv("RESHIFT_URL", server.url)
    cells = json.loads((Path(__file__).parents[2] / "examples" / "serve.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    exec("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"), {})
    assert capsys.readouterr().out.count(" score ") == 4
    assert not [job for job in server.get("/jobs")["items"] if job["cases"] == 4]


def test_the_client(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(4))
    with Client(server.url) as client:
        [case] = client.score([tmp_path / "a.png"])
        assert client.review(case, "accept", reviewer="Bob")["reviewer"] == "Bob"
        assert client.models()[0]["name"] == "bundle"
        client.delete(case["url"].split("/")[4])
    assert httpx.get(f"{server.url}{case['url'].lstrip('/')}").status_code == 404
