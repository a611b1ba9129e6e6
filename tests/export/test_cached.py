"""Converted bundles in the cache: whole or absent, whatever happens, and found by content."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import Cli, Outcome, read_records, start

from reshift.errors import UserError
from reshift.export import cached, folder
from reshift.inference.bundle import load_bundle, save_bundle

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs the extra export")
# Dies when the model is written and would be compared.
KILLED = "import os, reshift.export.folder as module; module.compare = lambda *args: os.kill(os.getpid(), 9)"
COUNTED = """
import os, reshift.export.folder as module
export = module.export
def counted(*args):
    open(f"{os.environ['RESHIFT_CACHE']}.{os.getpid()}", "w").close()
    return export(*args)
module.export = counted
"""


@pytest.fixture(scope="module")
def converted(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the conversion of ``tiny_bundle``; copy it."""
    home = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESHIFT_CACHE", str(home))
        cached.make_conversion(tiny_bundle, load_bundle(tiny_bundle))
    return home


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def full_cache(converted: Path, empty_cache: Path) -> Path:
    return Path(shutil.copytree(converted, empty_cache))


def conversions(cache: Path) -> list[Path]:
    """All folders, unfinished ones among them."""
    return sorted(path for path in (cache / "converted").iterdir() if path.is_dir())


@pytest.mark.parametrize("name", ["model.onnx", "export.json", "checksums.json"])
def test_a_damaged_conversion_does_not_count(name: str, tiny_bundle: Path, full_cache: Path) -> None:
    bundle, [made] = load_bundle(tiny_bundle), conversions(full_cache)
    whole = (made / name).read_bytes()
    assert cached.find_conversion(bundle) is not None
    for part in (b"", whole[: len(whole) // 2], bytes([whole[0] ^ 1]) + whole[1:]):
        (made / name).write_bytes(part)
        assert cached.find_conversion(bundle) is None
    (made / name).unlink()
    assert cached.find_conversion(bundle) is None


def test_a_damaged_conversion_is_made_anew(tiny_bundle: Path, full_cache: Path) -> None:
    bundle, before = load_bundle(tiny_bundle), conversions(full_cache)
    (before[0] / "model.onnx").write_bytes(b"damaged")
    cached.make_conversion(tiny_bundle, bundle)
    assert conversions(full_cache) == before
    assert cached.find_conversion(bundle) is not None


def test_a_killed_conversion_leaves_nothing_that_counts(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, empty_cache: Path, tmp_path: Path
) -> None:
    arguments = ("score", tiny_bundle, folder_of_images, "--out", tmp_path / "out", "--runtime", "onnx")
    process = start(*arguments, prelude=KILLED)
    printed = process.communicate()
    assert process.returncode == -9, printed
    [left] = conversions(empty_cache)
    assert left.name.startswith(".")
    assert (left / "export" / "model.onnx").is_file()
    assert run_cli(*arguments).code == 0
    assert len(read_records(tmp_path / "out")) == 12
    [made] = conversions(empty_cache)
    assert not made.name.startswith(".")


def test_two_processes_convert_once(tiny_bundle: Path, folder_of_images: Path, empty_cache: Path, tmp_path: Path) -> None:
    commands = [("score", tiny_bundle, folder_of_images, "--out", tmp_path / name, "--runtime", "onnx") for name in "ab"]
    processes = [start(*command, prelude=COUNTED) for command in commands]
    for process in processes:
        printed = process.communicate()
        assert process.returncode == 0, printed
    assert len(conversions(empty_cache)) == 1
    assert len(list(tmp_path.glob("cache.*"))) == 1, "both have converted"
    assert read_records(tmp_path / "a") == read_records(tmp_path / "b")


def test_a_bundle_that_changes_while_it_is_converted_is_refused(
    tiny_bundle: Path, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    bundle, export = load_bundle(path), folder.export
    assert bundle.calibration is not None
    other = bundle.calibration.model_copy(update={"image_quantile": 0.5})

    def calibrate_and_export(*args: Any) -> object:
        save_bundle(path, bundle.detector, bundle.config, other, bundle.facts)
        return export(*args)

    monkeypatch.setattr(folder, "export", calibrate_and_export)
    with pytest.raises(UserError, match="has changed while it was converted"):
        cached.make_conversion(path, bundle)
    assert conversions(empty_cache) == []
    assert cached.conversion_key(load_bundle(path)) != cached.conversion_key(bundle)


def test_a_method_outside_reshift_is_not_converted(tiny_bundle: Path, empty_cache: Path) -> None:
    found = load_bundle(tiny_bundle)
    foreign = found._replace(config=found.config.model_copy(update={"method": "mine:Method"}))
    with pytest.raises(UserError, match="code outside reshift"):
        cached.make_conversion(tiny_bundle, foreign)
    assert not empty_cache.exists()


def test_the_cache_lists_and_prunes_conversions(run_cli: Cli, tiny_bundle: Path, full_cache: Path) -> None:
    [made] = conversions(full_cache)
    left = full_cache / "converted" / ".killed" / "export" / "model.onnx"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"part")
    files = [*made.iterdir(), left]

    def age() -> None:
        old = time.time() - 40 * 86_400
        for file in filter(Path.exists, files):
            os.utime(file, (old, old))

    def prune(*options: str) -> Outcome:
        return run_cli("cache", "prune", "--kind", "converted", *options)

    age()
    assert f"converted  {len(files):8} files" in run_cli("cache", "list").out
    assert f"would remove {len(files)} files" in prune("--dry-run").out
    assert cached.find_conversion(load_bundle(tiny_bundle)) is not None  # used, so young again
    assert "removed 1 files" in prune().out
    assert conversions(full_cache) == [made]
    age()
    assert f"removed {len(files) - 1} files" in prune().out
    assert conversions(full_cache) == []
    assert (full_cache / "converted" / ".lock").exists(), "another process may hold it"
