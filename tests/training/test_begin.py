"""What begins a stage: one pass over a bounded number of images."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from reshift.data.phantom import write_phantom
from reshift.data.source import Source
from reshift.methods.detector import Stage
from reshift.methods.patchcore import PatchCore
from reshift.training.loop import evenly
from reshift.training.run import resolve, train_run


def test_what_begins_a_stage_sees_at_most_so_many_images() -> None:
    assert list(evenly(range(5), None)) == list(evenly(range(5), 5)) == [0, 1, 2, 3, 4]
    assert list(evenly([10, 11, 12, 13, 14, 15, 16], 3)) == [10, 12, 14]


def test_a_memory_of_many_normals_reads_few_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifest = write_phantom(tmp_path / "phantom", train=32, test_normal=2, test_abnormal=2, size=32, slices=2)
    counts = list[int]()
    batches = Source.batches

    def counted(self: Source, indices: Sequence[int] | None = None) -> Iterator[torch.Tensor]:
        counts.append(len(self) if indices is None else len(indices))
        return batches(self, indices)

    def limited(self: PatchCore) -> tuple[Stage, ...]:
        return tuple(stage._replace(begin_images=8) for stage in stages(self))

    stages = PatchCore.stages
    monkeypatch.setattr(Source, "batches", counted)
    monkeypatch.setattr(PatchCore, "stages", limited)
    fit_only = resolve("patchcore", "quick", [{"data": {"size": 32, "holdout": 0.0}, "train": {"cache": "off", "device": "cpu"}}])
    train_run(fit_only, manifest, tmp_path / "run")
    assert counts[0] == 8
