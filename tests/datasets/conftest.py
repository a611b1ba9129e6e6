"""What tests of downloads share."""

import tempfile
from pathlib import Path

import dataset_trees as trees
import pytest


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that archives are unpacked to; every command must leave it empty."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(scope="module")
def busi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.busi(tmp_path_factory.mktemp("busi"))
