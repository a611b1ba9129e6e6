"""Cross-fitting: each member leaves out one fold, and thresholds come from normals that the scoring part has not seen."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reshift.config import Config, parse
from reshift.data.cases import Case, assign_folds
from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.data.prepare import prepare
from reshift.data.read import read_image
from reshift.data.source import Source, folds
from reshift.inference.calibrate import unseen_normals
from reshift.inference.model import load_model
from reshift.methods.detector import Detector, Objective, Stage, Step
from reshift.methods.reshift.discriminator import masked_cross_entropy
from reshift.methods.reshift.memory import Memory, distance_to_banks
from reshift.methods.reshift.method import Reshift
from reshift.methods.reshift.settings import ReshiftSettings
from reshift.methods.reshift.witness import TrainedWitness
from reshift.system.device import Rank
from reshift.training.loop import fit
from reshift.training.run import resolve, train_run

SIZE = 32
TINY: dict[str, Any] = {
    "steps": 2, "denoising_steps": 2, "folds": 3, "widths": (8, 8, 8, 8), "denoising_widths": (8, 8, 8),
    "bank": 96, "sample": 900, "sources": ("offset",), "features": ("efficientnet-lite0",),
}  # fmt: skip


def cases(*subjects: str) -> list[Case]:
    return [Case(str(i), Path(str(i)), None, subject, 0, "train", "") for i, subject in enumerate(subjects)]


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) - 0.5


def build(**settings: Any) -> Reshift:
    torch.manual_seed(0)
    return Reshift(ReshiftSettings(**(TINY | settings)), SIZE, 1).eval()


def test_a_subject_belongs_to_one_fold_and_folds_are_even() -> None:
    given = cases(*"aaabbcccddeeeffgghhii")
    dealt = assign_folds(given, 3, lambda n: list(range(n))[::-1])
    assert len({(case.subject, fold) for case, fold in zip(given, dealt, strict=True)}) == 9
    assert max(Counter(dealt).values()) - min(Counter(dealt).values()) <= 3  # no more than one subject's images
    assert set(dealt) == {0, 1, 2}


def test_fewer_subjects_than_folds_are_split_by_image() -> None:
    assert Counter(assign_folds(cases(*"aaaaaabb"), 4, lambda n: list(range(n)))) == {0: 2, 1: 2, 2: 2, 3: 2}


def test_folds_depend_on_images_and_seed_only() -> None:
    given = cases(*"abcdefghijkl")
    assert folds(given, 3, 0) == folds(given, 3, 0)
    assert folds(given, 3, 0) != folds(given, 3, 1)
    assert sorted(i for fold in folds(given, 3, 0) for i in fold) == list(range(12))
    assert folds(given, 1, 0) == [list(range(12))]


class Recorder(Detector):
    """Records the images it is shown, identified by their mean."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.count, self.batches, self.begun = count, list[list[list[float]]](), dict[int, list[float]]()

    def stages(self) -> Sequence[Stage]:
        return (Stage("watch", 0, (Objective((self,), self.loss),), self.begin, None, 7, self.count),)

    def begin(self, batches: Iterable[Tensor], fold: int) -> None:
        self.begun[fold] = [round(float(x.mean()), 5) for batch in batches for x in batch]

    def loss(self, x: Tensor, _step: Step) -> dict[str, Tensor]:
        self.batches.append([[round(float(image.mean()), 5) for image in part] for part in x.chunk(self.count)])
        return {"loss": self.weight.square()}


def test_a_batch_has_equal_parts_of_every_fold(tmp_path: Path) -> None:
    write_phantom(tmp_path / "data", train=13, test_normal=1, test_abnormal=1, size=SIZE, slices=2)
    config = parse(Config, {"method": "reshift", "data": {"size": SIZE}, "train": {"batch": 9}, "seed": 4})
    kept = [case for case in load_cases(tmp_path / "data" / "manifest.csv") if case.split == "train"]
    source = Source(kept, config.data, torch.device("cpu"))
    recorder = Recorder(3)
    fit(recorder, source, config, tmp_path, Rank(0, 1))
    means = [round(float(x.mean()), 5) for x in source.batch(range(len(source)))]
    groups = [{means[i] for i in fold} for fold in folds(kept, 3, config.seed)]
    assert len(set(means)) == len(kept)  # or the means would not identify the images
    assert [set(recorder.begun[k]) for k in range(3)] == groups
    assert len(recorder.batches) == 7
    for parts in recorder.batches:
        assert [len(part) for part in parts] == [3, 3, 3]
        assert all(set(part) <= group for part, group in zip(parts, groups, strict=True))
    for k, group in enumerate(groups):  # 21 images of a fold of four or five: all of them, several times
        assert {mean for parts in recorder.batches for mean in parts[k]} == group


def test_a_network_does_not_learn_from_its_own_fold() -> None:
    model = build(features="off")
    x = images(6)
    changed = x.clone()
    changed[2:4] = 0.9  # fold 1's part of the batch
    witness: Any = model.witnesses[0]
    losses = list[float]()

    def remember(out: Tensor, target: Tensor, inside: Tensor) -> Tensor:
        losses.append(float(masked_cross_entropy(out, target, inside).detach()))
        return out.mean()

    for batch in (x, changed):
        step = Step(torch.Generator().manual_seed(0))
        example = model._shifted(*model._augmented(batch, step), step)
        witness.nets.mean_loss(witness._input(example.image), (), example, remember)
    assert [losses[k] == losses[3 + k] for k in range(3)] == [False, True, False]


def fill(model: Reshift) -> Memory:
    [memory] = [witness for witness in model.witnesses if isinstance(witness, Memory)]
    for fold in range(3):
        model._fill_memory(memory, [images(4, seed=fold)], fold)
    return memory


def test_without_a_fold_only_its_network_predicts_and_its_patches_are_left_out() -> None:
    model, x = build(), images(2, seed=9)
    with torch.no_grad():
        memory, seen = fill(model), model._see(x)
        distance = memory(seen, without=2)
        memory.bank[2] = memory.bank[0]
        torch.testing.assert_close(distance, memory(seen, without=2))
        for witness in (w for w in model.witnesses if isinstance(w, TrainedWitness)):
            alone = witness(seen, without=2)
            witness.nets.members = nn.ModuleList([witness.nets.members[2]])
            torch.testing.assert_close(alone, witness(seen))


def test_a_new_image_is_compared_with_as_many_patches_as_the_normals_that_set_the_thresholds() -> None:
    banks, rows = torch.randn(3, 32, 152), torch.randn(7, 152)
    slow = torch.stack([torch.cdist(rows, torch.cat([banks[j] for j in range(3) if j != k])).amin(1) for k in range(3)])
    torch.testing.assert_close(distance_to_banks(rows, banks, None), slow.mean(0))
    torch.testing.assert_close(distance_to_banks(rows, banks, 1), slow[1])


def test_without_its_fold_an_image_is_farther_from_the_memory() -> None:
    model, x = build(bank=3 * 16, sample=3 * 3136, blur=0.0), images(4, seed=2)
    with torch.no_grad():
        memory, seen = fill(model), model._see(x)
        assert float(memory(seen, without=2).mean()) > float(memory(seen).mean())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without held-out normals: all normals are learned from, and all set the thresholds."""
    folder = tmp_path_factory.mktemp("crossfit")
    write_phantom(folder / "data", train=12, test_normal=2, test_abnormal=2, size=SIZE, slices=2)
    model = {**TINY, "bank": 60}
    layer = {"data": {"size": SIZE, "holdout": 0.0}, "train": {"batch": 6}, "model": model}
    train_run(resolve("reshift", "paper", [layer]), folder / "data" / "manifest.csv", folder / "run")
    return folder


def test_thresholds_come_from_all_training_normals_each_unseen(trained: Path) -> None:
    model = load_model(trained / "run" / "bundle")
    calibration = model.bundle.calibration
    assert calibration is not None
    assert calibration.held_out is not None
    assert calibration.held_out.images == 12
    kept = [case for case in load_cases(trained / "data" / "manifest.csv") if case.split == "train"]
    parts = unseen_normals(model, kept, [])
    assert [part.fold for part in parts] == [0, 1, 2]
    expected = [
        model.launch(prepare(read_image(case.image, None), model.bundle.config.data).pixels[None], part.fold)()[0][0]
        for part in parts
        for case in part.cases
    ]
    assert sorted(expected) == pytest.approx(list(calibration.held_out.scores), rel=1e-6)
    assert calibration.training is not None
    assert calibration.training.scores != calibration.held_out.scores


def test_the_acquisition_check_measures_distances_of_the_last_fold(trained: Path) -> None:
    stored = json.loads((trained / "run" / "bundle" / "calibration.json").read_text())
    assert len(stored["acquisition"]["distances"]) == 4  # the last of three folds of twelve


def test_a_held_out_normal_is_scored_by_all_members(trained: Path) -> None:
    model = load_model(trained / "run" / "bundle")
    kept = [case for case in load_cases(trained / "data" / "manifest.csv") if case.split == "train"]
    parts = unseen_normals(model, kept[:8], kept[8:])
    assert [part.fold for part in parts] == [0, 1, 2, None]
    assert len(parts[-1].cases) == 4
