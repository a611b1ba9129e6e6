"""Credentials: where they come from, that they are sent and never shown, and TLS that is always verified."""

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_proxy import FaultyProxy, faulty_proxy
from helpers import Cli, refused
from orthanc import Orthanc, running_orthanc

from reshift.errors import UserError
from reshift.pacs.credentials import Credentials, checked_url, find_credentials, unencrypted

SECRET = "correct-horse"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    users = {"AuthenticationEnabled": True, "RegisteredUsers": {"scorer": SECRET}}
    with running_orthanc(tmp_path_factory.mktemp("orthanc"), **users) as running:
        yield running


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"RESHIFT_PACS_{name}", raising=False)


def test_the_archive_asks_for_a_password(
    run_cli: Cli, tiny_bundle: Path, server: Orthanc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("pacs", "score", tiny_bundle, "--dicomweb", server.dicomweb, "--out", tmp_path / "out")
    refused(run_cli(*arguments), "asks for credentials (401)")
    monkeypatch.setenv("RESHIFT_PACS_USER", "scorer")
    refused(run_cli(*arguments), "belong together")
    monkeypatch.setenv("RESHIFT_PACS_PASSWORD", "wrong-horse")
    assert "wrong-horse" not in refused(run_cli(*arguments), "refuses our credentials (401)")
    monkeypatch.setenv("RESHIFT_PACS_PASSWORD", SECRET)
    shown = run_cli(*arguments)
    assert shown.code == 0, shown
    assert SECRET not in shown.out + shown.err
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_a_netrc_file(run_cli: Cli, tiny_bundle: Path, server: Orthanc, tmp_path: Path) -> None:
    file = tmp_path / "netrc"
    file.write_text(f"machine 127.0.0.1 login scorer password {SECRET}\n")
    file.chmod(0o644)
    arguments = ("pacs", "score", tiny_bundle, "--dicomweb", server.dicomweb, "--out", tmp_path / "out", "--netrc", file)
    assert SECRET not in refused(run_cli(*arguments), "others can read it")
    file.chmod(0o600)
    assert run_cli(*arguments).code == 0
    file.write_text(f"machine elsewhere.example login scorer password {SECRET}\n")
    refused(run_cli(*arguments), "has no entry for 127.0.0.1")
    file.write_text(f"nonsense {SECRET}\n")
    assert SECRET not in refused(run_cli(*arguments), "is not a netrc file")


def test_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHIFT_PACS_TOKEN", SECRET)
    found = find_credentials("https://pacs.example", None)
    assert found.token == SECRET
    assert SECRET not in f"{found} {found!r} {[found]}"


@pytest.mark.parametrize("url", ["pacs.example", "https://", "http://host:99999/x", "https://host/dicom-web?x=1", "file:///etc"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UserError):
        checked_url(url)


def test_a_password_in_the_open_is_noticed() -> None:
    known = Credentials("a", "b")
    assert unencrypted("http://pacs.example", known)
    assert not unencrypted("https://pacs.example", known)
    assert not unencrypted("http://127.0.0.1:8042/dicom-web", known)
    assert not unencrypted("http://pacs.example", Credentials())


@pytest.fixture
def https(server: Orthanc, tmp_path: Path) -> Iterator[FaultyProxy]:
    """The same archive behind TLS, with a certificate of its own."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    more = ["-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *more], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with faulty_proxy(server.url) as running:
        running.socket = context.wrap_socket(running.socket, server_side=True)
        running.url = running.url.replace("http:", "https:")
        yield running


def test_certificates_are_verified(
    run_cli: Cli, tiny_bundle: Path, https: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESHIFT_PACS_USER", "scorer")
    monkeypatch.setenv("RESHIFT_PACS_PASSWORD", SECRET)
    arguments = ("pacs", "score", tiny_bundle, "--dicomweb", f"{https.url}/dicom-web", "--out", tmp_path / "out")
    refused(run_cli(*arguments), "certificate is not trusted")
    assert not https.seen  # nothing was said to a stranger
    assert run_cli(*arguments, "--ca", tmp_path / "certificate.pem").code == 0
