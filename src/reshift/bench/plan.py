"""From a suite and the data at hand to cells: full configs, fingerprints, what cannot be run and why."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reshift import methods
from reshift.bench.cells import Spec, Task, deciding, digest
from reshift.bench.suite import PREDICT, DataSet, Entry, PhantomSet, Suite
from reshift.bench.version import code_version, everything, files_version
from reshift.config import Config
from reshift.data.manifest import Case, expand, fingerprint, load_cases
from reshift.data.phantom import write_phantom
from reshift.errors import UserError
from reshift.system.cache import VARIABLE
from reshift.system.files import naming, writable_folder
from reshift.training.run import resolve, split_normals


class UnusableDataError(UserError):
    """What is wrong lies in the data, not in the suite: other cells can be run."""


class Blocked(NamedTuple):
    """A cell that cannot be run, and why."""

    entry: Entry
    why: str


class Plan(NamedTuple):
    """The cells of a suite in its own order."""

    specs: list[Spec]
    blocked: list[Blocked]

    def cells(self) -> int:
        """How many there are."""
        return len(self.specs) + len(self.blocked)


class Data:
    """One data set: read once, hashed once."""

    def __init__(self, path: Path) -> None:
        self.path, self.cases = path, load_cases(path)
        learned = [case for case in self.cases if case.split != "test"]
        self.tests = [case for case in self.cases if case.split == "test"]
        self.learned, self.tested = fingerprint(learned), fingerprint(self.tests)
        self.slices: dict[str, list[Case]] = {}

    def split(self, config: Config) -> tuple[list[Case], list[Case]]:
        """Images to train on, and normals held out; volumes are looked into once per way of slicing them."""
        known = config.data.model_dump_json()
        try:
            if known not in self.slices:
                learned = [case for case in load_cases(self.path, config.data.subject) if case.split != "test"]
                self.slices[known] = expand(learned, config.data)
            return split_normals(self.slices[known], config, self.path)
        except UserError as err:
            raise UnusableDataError(str(err)) from None


def plan(suite: Suite, data: Path | None, out: Path) -> Plan:
    """Look at the data, and make a spec of every cell that has its data."""
    found: dict[str, Data | str] = {}
    for name in dict.fromkeys(name for entry in suite.entries for name in (entry.dataset, entry.trained_on)):
        found[name] = _open(name, suite.datasets[name], data, out)
    lenders = {chosen.trained_on for chosen in suite.datasets.values()}
    specs, blocked = list[Spec](), list[Blocked]()
    for entry in suite.entries:
        test, train = found[entry.dataset], found[entry.trained_on]
        if isinstance(test, str) or isinstance(train, str):
            blocked.append(Blocked(entry, test if isinstance(test, str) else str(train)))
            continue
        if not test.tests and entry.dataset in lenders:
            continue  # a set that only lends its models
        try:
            specs.append(_spec(suite, entry, train, test, out))
        except UnusableDataError as err:
            blocked.append(Blocked(entry, str(err)))
    return Plan(specs, blocked)


def tasks(specs: Iterable[Spec], out: Path) -> list[Task]:
    """Put together cells that share a model; of several cells with one key, the first is run."""
    groups: dict[str, dict[str, Spec]] = {}
    for spec in specs:
        groups.setdefault(spec.model, {}).setdefault(spec.key, spec)
    return [Task(str(out.absolute()), tuple(cells.values())) for cells in groups.values()]


def _open(name: str, chosen: DataSet, data: Path | None, out: Path) -> Data | str:
    """The data set, or why it cannot be used."""
    if chosen.phantom is not None:
        return Data(_phantom(name, chosen.phantom, out))
    path = Path(str(chosen.manifest)).expanduser()
    if not path.is_absolute() and data is None:
        return f"{path}: data set '{name}' is relative to --data, which is not given"
    try:
        return Data(path if path.is_absolute() or data is None else data / path)
    except (UserError, OSError) as err:
        return str(err)


def _phantom(name: str, wanted: PhantomSet, out: Path) -> Path:
    """Draw the set once; a folder that has its final name is whole."""
    folder = out / "data" / f"{name}-{digest([wanted.model_dump(), files_version('data/phantom*.py')])[:8]}"
    if not (folder / "manifest.csv").exists():
        half = writable_folder(folder.with_name(f".{folder.name}-{os.getpid()}"))
        kind = wanted.model_dump(exclude={"images"})
        with naming(folder):
            write_phantom(half, train=wanted.images, **kind)
            if not folder.exists():
                half.rename(folder)
        shutil.rmtree(half, ignore_errors=True)  # another process was faster
    return folder / "manifest.csv"


def _spec(suite: Suite, entry: Entry, train: Data, test: Data, out: Path) -> Spec:
    if not test.tests:
        raise UnusableDataError(f"{test.path}: has no test images; it needs labelled rows in split 'test'")
    config, predict = _configs(entry, train)
    code = code_version(entry.method)
    dump = config.model_dump(mode="json")
    if dump["train"]["cache"] == "auto" and not os.environ.get(VARIABLE):
        dump["train"]["cache"] = str(out.absolute() / "stages" / everything())  # stages do not know the code they are of
    return Spec(
        suite=suite.name, row=entry.row, method=entry.method, group=entry.group, dataset=entry.dataset,
        trained_on=entry.trained_on, seed=entry.seed, setting=entry.setting, config=dump, predict=predict,
        normative=suite.normative, data=f"{train.learned}-{test.tested}", code=code,
        model=digest([deciding(dump), train.learned, code])[:16],
        train_path=str(train.path.absolute()), test_path=str(test.path.absolute()),
    )  # fmt: skip


def _configs(entry: Entry, train: Data) -> tuple[Config, dict[str, Any]]:
    """The training config, and what differs from it when predicting."""
    try:
        methods.get(entry.method)  # a suite is a file: it may not run others' code by naming it
        layers = [*entry.layers, {"seed": entry.seed}]
        config = resolve(entry.method, entry.profile, layers)
        if entry.updates:
            layers.append({"model": _epochs(entry.updates, config, train)})
            config = resolve(entry.method, entry.profile, layers)
        predicting = resolve(entry.method, entry.profile, [*layers, entry.predict])
    except UnusableDataError:
        raise
    except UserError as err:
        raise UserError(f"row '{entry.row}': {err}") from None
    changed = dict(_changes(config.model_dump(mode="json"), predicting.model_dump(mode="json")))
    return config, {name: changed[name] for name in PREDICT if name in changed}


def _epochs(updates: Mapping[str, int], config: Config, train: Data) -> dict[str, int]:
    """As many epochs as give at least these updates."""
    kept, _ = train.split(config)
    per_epoch = -(-len(kept) // min(config.train.batch, len(kept)))
    return {name: -(-count // per_epoch) for name, count in updates.items()}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := dict(_changes(old, value)):
                yield name, inner
        elif value != old:
            yield name, value
