"""Turn a suite and the data into cells with complete configs and keys; say which cells cannot be run, and why."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reshift import methods
from reshift.bench.cells import Spec, Task, deciding_config, digest
from reshift.bench.compute import training_facts
from reshift.bench.suite import PREDICT_TABLES, DataSet, Entry, PhantomSet, Suite
from reshift.bench.version import all_methods_version, code_version, hash_files, imported_files
from reshift.config import Config, merge, nearest
from reshift.data.cases import Case, expand_volumes, fingerprint
from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.errors import UserError
from reshift.inference.bundle import build
from reshift.nets.lpips import NAME as LPIPS
from reshift.system.cache import VARIABLE
from reshift.system.files import create_output_folder, writing
from reshift.system.lock import locked
from reshift.training.run import resolve, split_normals
from reshift.weights.find import available
from reshift.weights.registry import WHEEL
from reshift.weights.registry import entry as find_network

FEATURE_WORDS = ("auto", "embedded", "off")  # values of the setting "features" that name no network
Facts = dict[tuple[str, ...], Any]  # of detectors that have been built, by config and changed settings


class UnusableDataError(UserError):
    """The data is at fault, not the suite: the cells of other data can be run."""


class Blocked(NamedTuple):
    """A cell that cannot be run, and why."""

    entry: Entry
    why: str


class Plan(NamedTuple):
    """The cells of a suite, in its order."""

    specs: list[Spec]
    blocked: list[Blocked]

    def total(self) -> int:
        """How many cells there are."""
        return len(self.specs) + len(self.blocked)


class Data:
    """One data set. It is read and hashed once."""

    def __init__(self, path: Path) -> None:
        self.path, self.cases = path, load_cases(path)
        self.tests = [case for case in self.cases if case.split == "test"]
        self.train_hash = fingerprint([case for case in self.cases if case.split != "test"])
        self.test_hash = fingerprint(self.tests)
        self.expanded: dict[str, list[Case]] = {}

    def training_images(self, config: Config) -> int:
        """How many images to train on; volumes are opened once for each way of slicing them."""
        known = config.data.model_dump_json()
        try:
            if known not in self.expanded:
                learned = [case for case in load_cases(self.path, config.data.subject) if case.split != "test"]
                self.expanded[known] = expand_volumes(learned, config.data)
            return len(split_normals(self.expanded[known], config, self.path)[0])
        except UserError as err:
            raise UnusableDataError(str(err)) from None


def plan(suite: Suite, data: Path | None, out: Path) -> Plan:
    """Open the data, and make a spec of every cell that has its data. A wrong setting is refused before any data is read."""
    facts: Facts = {}
    for entry in {entry.row: entry for entry in suite.entries}.values():
        _check_prediction(entry, *_resolve(entry, {"model": dict(entry.updates)}), facts)
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
            continue  # other sets use its models, and it has nothing to test on
        try:
            specs.append(_spec(suite, entry, train, test, out))
        except UnusableDataError as err:
            blocked.append(Blocked(entry, str(err)))
    return Plan(specs, blocked)


def group_tasks(specs: Iterable[Spec], out: Path, keep_maps: int = 0) -> list[Task]:
    """Group the cells that share a model. Of several cells with one key, the first is run."""
    groups: dict[str, dict[str, Spec]] = {}
    for spec in specs:
        groups.setdefault(spec.model, {}).setdefault(spec.key, spec)
    return [Task(str(out.absolute()), tuple(cells.values()), keep_maps) for cells in groups.values()]


def _open(name: str, chosen: DataSet, data: Path | None, out: Path) -> Data | str:
    """Return the data set, or why it cannot be used."""
    if chosen.phantom is not None:
        return Data(_draw_phantom(name, chosen.phantom, out / "data"))
    path = Path(str(chosen.manifest)).expanduser()
    if not path.is_absolute() and data is None:
        return f"{path}: data set '{name}' is relative to --data, which is not given"
    path = path if path.is_absolute() or data is None else data / path
    try:
        return Data(path)
    except (UserError, OSError) as err:
        return f"{err}{_nearest_folder(path)}"


def _nearest_folder(path: Path) -> str:
    """'; did you mean …?' where the folder of a data set is missing, and one beside it has nearly its name."""
    folder = path.parent
    if folder.exists() or not folder.parent.is_dir():
        return ""
    close = nearest(folder.name, [other.name for other in folder.parent.iterdir() if other.is_dir()])
    return close if "did you mean" in close else ""


def _draw_phantom(name: str, wanted: PhantomSet, parent: Path) -> Path:
    """Draw the set once. It gets its final name when it is complete."""
    folder = parent / f"{name}-{digest([wanted.model_dump(), hash_files(imported_files([write_phantom.__module__]))])[:8]}"
    if not folder.exists():
        with locked(create_output_folder(parent), wait=True), writing(folder):  # a dry run may draw it at the same time
            unfinished = parent / f".{folder.name}"
            shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed
            if not folder.exists():
                write_phantom(unfinished, train=wanted.images, **wanted.model_dump(exclude={"images"}))
                unfinished.rename(folder)
    return folder / "manifest.csv"


def _spec(suite: Suite, entry: Entry, train: Data, test: Data, out: Path) -> Spec:
    if not test.tests:
        raise UnusableDataError(f"{test.path}: has no test images; it needs labelled rows in split 'test'")
    config, predict = _configs(entry, train)
    code = code_version(entry.method)
    dump = config.model_dump(mode="json")
    if dump["train"]["cache"] == "auto" and not os.environ.get(VARIABLE):
        dump["train"]["cache"] = str(out.absolute() / "stages" / all_methods_version())  # the cache does not check the code
    return Spec(
        suite=suite.name, row=entry.row, method=entry.method, group=entry.group, dataset=entry.dataset,
        trained_on=entry.trained_on, seed=entry.seed, setting=entry.setting, config=dump, predict=predict,
        normative=_distance() if suite.normative else None, data=f"{train.train_hash}-{test.test_hash}", code=code,
        model=digest([deciding_config(dump), train.train_hash, code])[:16],
        train_path=str(train.path.absolute()), test_path=str(test.path.absolute()),
    )  # fmt: skip


def _distance() -> str:
    """What RQI is measured by here: pulling LPIPS makes it another result."""
    return LPIPS if available(LPIPS) else WHEEL


def _configs(entry: Entry, train: Data) -> tuple[Config, dict[str, Any]]:
    """Return the training config, and the settings that differ from it during prediction."""
    layer: dict[str, Any] = {"seed": entry.seed}
    if entry.updates:
        layer["model"] = _epochs(entry.updates, _resolve(entry, layer)[0], train)
    config, predicting = _resolve(entry, layer)
    changed = dict(_changes(config.model_dump(mode="json"), predicting.model_dump(mode="json")))
    return config, {name: changed[name] for name in PREDICT_TABLES if name in changed}


def _resolve(entry: Entry, layer: dict[str, Any]) -> tuple[Config, Config]:
    """The configs of training and of prediction, with one more layer of settings; a mistake names the row."""
    try:
        cls = methods.get(entry.method)  # refuses what the user does not trust, a method of somebody else: a suite is only a file
        _check_updates(entry, cls.Settings.model_fields)
        layers = [*entry.layers, layer]
        config = resolve(entry.method, entry.profile, layers)
        _check_features(config.model.get("features"))
        return config, resolve(entry.method, entry.profile, [*layers, entry.predict])
    except UserError as err:
        raise UserError(f"row '{entry.row}': {err}") from None


def _check_updates(entry: Entry, known: Iterable[str]) -> None:
    """Refuse 'updates' of a setting that is no number of epochs; one that does not exist is refused as every setting is."""
    epochs = [name for name in known if name.endswith("epochs")]
    for name in set(entry.updates).intersection(known).difference(epochs):
        near = nearest(name, epochs) if epochs else f"; {entry.method} has none"
        raise UserError(f"updates: '{name}' is not a number of epochs{near}")


def _check_prediction(entry: Entry, config: Config, predicting: Config, known: Facts) -> None:
    """Refuse a setting that is to differ at prediction alone, but changes what is trained; ``known`` keeps what was built."""
    changed = dict(_changes(config.model, predicting.model))
    if not changed or not _trained_otherwise(config, changed, known):
        return
    names = [name for name, value in changed.items() if _trained_otherwise(config, {name: value}, known)] or list(changed)
    swept = entry.setting["name"] if entry.setting else None
    advice = "leave out 'inference'" if swept in [f"model.{name}" for name in names] else "give it under 'set', not 'predict'"
    raise UserError(f"row '{entry.row}': {' and '.join(f'model.{n}' for n in names)} changes what is trained; {advice}")


def _trained_otherwise(config: Config, change: dict[str, Any], known: Facts) -> bool:
    """Whether the settings of the method in ``change`` need another training. False where a detector cannot be built."""
    before, after = _facts(config, {}, known), _facts(config, change, known)
    return before is not None and after is not None and before != after


def _facts(config: Config, change: dict[str, Any], known: Facts) -> Any:
    """What a detector states about its training; one value of a setting stands for all, since large networks take a second."""
    key = (config.model_dump_json(), *change)
    if key not in known:
        try:
            known[key] = training_facts(build(config.model_copy(update={"model": merge(config.model, change)})))
        except Exception:  # such as missing weights of a feature network: its cells will say
            known[key] = None
    return known[key]


def _check_features(named: Any) -> None:
    """Refuse a feature network that does not exist; whether the weights of one are at hand, its cells will say."""
    for name in [named] if isinstance(named, str) else named or ():
        if name not in FEATURE_WORDS and not str(name).endswith(".safetensors"):
            find_network(str(name))


def _epochs(updates: Mapping[str, int], config: Config, train: Data) -> dict[str, int]:
    """As many epochs as give at least these updates."""
    images = train.training_images(config)
    per_epoch = -(-images // min(config.train.batch, images))
    return {name: -(-count // per_epoch) for name, count in updates.items()}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := dict(_changes(old, value)):
                yield name, inner
        elif value != old:
            yield name, value
