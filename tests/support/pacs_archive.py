"""Fixtures of the tests of ``pacs``: an archive per file, and a faulty way to it."""

from collections.abc import Iterator

import pytest
from faulty_proxy import FaultyProxy, faulty_proxy
from orthanc import Orthanc, running_orthanc


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    pytest.importorskip("dicomweb_client", reason="reshift[pacs] is not installed")
    with running_orthanc(tmp_path_factory.mktemp("orthanc")) as running:
        yield running


@pytest.fixture
def archive(server: Orthanc, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orthanc]:
    """An empty archive; waits between retries are short."""
    for name in ("USER", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"RESHIFT_PACS_{name}", raising=False)
    monkeypatch.setattr("reshift.pacs.archive.FIRST_WAIT", 0.01)
    yield server
    server.delete_all()


@pytest.fixture
def proxy(archive: Orthanc) -> Iterator[FaultyProxy]:
    with faulty_proxy(archive.url) as running:
        yield running
