"""Everything a reader refuses, through the API: 4xx with the reader's own line. And what strangers may not do."""

import io
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from dicom_files import ct, grey, values, write
from helpers import noise, refused, run_process, save
from servers import Server, serving
from test_serve import nifti, png

from reshift.data.read import open_input
from reshift.errors import UserError

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    (home / "tokens").write_text(f"# users\nann {TOKEN}\nbob another-long-token-of-bob\n")
    options = ("--models", tiny_bundle.parent, "--store", home / "store", "--token-file", home / "tokens")
    with serving(*options, "--max-files", 20, "--max-upload", "2M", "--host", "127.0.0.1", token=TOKEN) as found:
        yield found


def bad_files(folder: Path) -> Iterator[Path]:
    """One of each kind that a reader refuses."""
    for name, content in {
        "damaged.png": b"no picture at all", "empty.tif": b"", "text.dcm": b"not DICOM at all" * 50, "cut.png": png()[:-300],
        "text.nii": b"not NIfTI" * 99, "empty.nii.gz": b"", "cut.nii.gz": nifti(folder / "v.nii.gz")[:-200],
        "cut.jpg": b"\xff\xd8\xff",
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
        yield folder / name
    pixels = np.where(noise() > 250, np.nan, noise()).astype(np.float32)
    yield save(pixels, folder / "hole.tif")
    yield save(np.full((20, 20), 3, dtype=np.uint8), folder / "flat.png")
    yield save(noise(0, 3, 3), folder / "tiny.png")
    tags: list[dict[str, Any]] = [
        {"Rows": None}, {"PixelData": None}, {"PhotometricInterpretation": "CIELAB"}, {"SamplesPerPixel": 4},
        {"NumberOfFrames": 0},
        {"Rows": 65535, "Columns": 65535}, {"BitsStored": 17}, {"HighBit": 15}, {"RescaleSlope": 0}, {"PixelSpacing": [1.0]},
    ]  # fmt: skip
    for number, changed in enumerate(tags):
        yield write(grey(values(), stored=12, **changed), folder / f"{number}.dcm")
    yield write(ct(np.full((20, 24), 7)), folder / "flat.dcm")


def test_every_refusal_of_the_readers(server: Server, tmp_path: Path) -> None:
    seen = 0
    for path in bad_files(tmp_path):
        with pytest.raises(UserError) as reason:
            open_input(path)
        answer = server.post((path.name, path.read_bytes()))
        assert answer.status_code == 422, (path.name, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"] == str(reason.value).replace(f"{tmp_path}/", ""), path.name
        seen += 1
    assert seen == 22


def zipped(*names: str, content: bytes = b"x") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.zip", zipped("../x.png"), "a name that leads out of the folder"),
        ("a.zip", zipped("b.zip"), "another archive"),
        ("a.zip", zipped("manifest.csv", content=b"image\n/etc/passwd\n"), "no PNG, JPEG, TIFF, NIfTI or DICOM images"),
        ("a.zip", zipped("b.txt"), "no PNG, JPEG, TIFF, NIfTI or DICOM images"),
        ("a.zip", zipped(*(f"{i}.png" for i in range(10_000))), "holds 10,000 files, over the limit of 20"),
        ("a.zip", zipped("b.png", content=bytes(3 * 2**20)), "over the limit of 0.0 GiB"),
        ("a.zip", b"PK no zip", "not a zip file we can read"),
        ("a.tar", b"x", "only .zip archives are opened"),
        ("manifest.csv", b"image\n/etc/passwd\n", "none of the files we read"),
        ("page.html", b"<script>alert(1)</script>", "none of the files we read"),
    ],
)
def test_archives_and_other_types(server: Server, name: str, content: bytes, expected: str) -> None:
    answer = server.post((name, content))
    assert (answer.status_code, expected in answer.json()["detail"]) == (422, True), answer.text


def test_limits_and_malformed_uploads(server: Server) -> None:
    assert server.post(("a.png", bytes(3 * 2**20))).status_code == 413
    assert server.post(*((f"{i}.png", png()) for i in range(21))).status_code == 413
    assert server.http.post("/api/v1/jobs", data={"model": "bundle"}).status_code == 415
    assert server.http.post("/api/v1/jobs", json={}).status_code == 415
    kind = {"content-type": "multipart/form-data; boundary=x"}
    for body in (b"", b"--x", b"--x\r\n\r\n", b"--x\r\nContent-Disposition: form-data; name=files; filename=a.png\r\n\r\nabc"):
        assert server.http.post("/api/v1/jobs", content=body, headers=kind).status_code in (400, 422), body
    assert server.post(("a.png", png()), model="../other").status_code == 404
    names = ("../../../etc/cron.d/x.png", "/abs.png", "C:\\x.png", "\x00.png", ".hidden.png", "a" * 400 + ".png", "ü.png", "")
    job = server.post(*((name, png(i)) for i, name in enumerate(names) if name)).json()
    done = server.ended(job["id"])
    assert (done["state"], done["cases"], done["failures"]) == ("done", len(names) - 1, 0)
    assert not any(part in ("..", "") for case in server.cases(job["id"]) for part in case["name"].split("/"))


def test_half_an_upload_leaves_nothing(server: Server, tmp_path: Path) -> None:
    before = server.get("/jobs")["items"]
    where = urlsplit(server.url)
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9999\r\n"
    part = "Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
    part += 'Content-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall((head + part).encode() + png()[:50])
    server.ended(server.submit(("b.png", png())))
    assert len(server.get("/jobs")["items"]) == len(before) + 1


def test_who_may_ask(server: Server) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Cookie": "reshift_session=x"}):
        answer = httpx.get(f"{server.url}api/v1/jobs", headers=headers)
        assert (answer.status_code, "token" in answer.json()["detail"]) == (401, True)
        assert httpx.post(f"{server.url}api/v1/jobs", headers=headers).status_code == 401
    assert httpx.get(f"{server.url}metrics").status_code == 401
    assert httpx.get(f"{server.url}health").status_code == httpx.get(server.url).status_code == 200
    with httpx.Client(base_url=server.url) as browser:
        assert browser.get("/api/v1/session").json()["user"] is None
        assert browser.post("/api/v1/session", json={"token": "wrong"}).status_code == 401
        opened = browser.post("/api/v1/session", json={"token": TOKEN})
        assert opened.json() == {"user": "ann"}
        assert all(word in opened.headers["set-cookie"] for word in ("HttpOnly", "SameSite=strict"))
        assert browser.get("/api/v1/jobs").status_code == 200
        assert browser.delete("/api/v1/session").status_code == 204
        assert browser.get("/api/v1/jobs").status_code == 401


def test_pages_of_other_sites_cannot_act(server: Server) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        answer = server.post(("a.png", png()), headers=headers)
        assert (answer.status_code, "another site" in answer.json()["detail"]) == (403, True)
    own = {"Origin": server.url.rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    assert server.post(("a.png", png()), headers=own).status_code == 201


def test_other_hosts_need_a_token(tiny_bundle: Path, tmp_path: Path) -> None:
    options = ("serve", "--models", tiny_bundle.parent, "--store", tmp_path / "s")
    refused(run_process(*options, "--host", "0.0.0.0"), "needs --token-file")
    (tmp_path / "t").write_text("# none\n")
    refused(run_process(*options, "--token-file", tmp_path / "t"), "holds no token")
    refused(run_process("serve", "--models", tmp_path / "no"), "no such folder")
    refused(run_process(*options, "--keep", "soon"), "'soon' is not a length of time")
