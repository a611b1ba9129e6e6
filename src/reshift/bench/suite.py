"""Read a suite: a TOML file of methods, data sets and seeds, and the list of cells that follows from it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from reshift.bench.cells import cell_name, slug
from reshift.config import Frozen, merge, nearest, parse, read_toml
from reshift.errors import UserError
from reshift.methods import METHODS, label

Group = Literal["baseline", "ours", "ablation", "sensitivity", "thresholds"]
Value = float | int | bool | str
OURS = ("dmd", "reshift")
PREDICT_TABLES = ("model", "calibrate")  # tables of the config that may differ between training and prediction


class PhantomSet(Frozen):
    """A data set that is drawn, so that it needs no download."""

    kind: Literal["brain", "ultrasound", "chest"] = "brain"
    images: int = Field(96, ge=8, description="normal training images")
    test_normal: int = Field(40, ge=1)
    test_abnormal: int = Field(40, ge=1)
    size: int = Field(128, ge=32)
    seed: int = Field(0, ge=0)
    slices: int = Field(4, ge=1, description="images per subject")


class DataSet(Frozen):
    """Where the images are, and on which data set the models are trained: on this one or on another."""

    manifest: str | None = None
    phantom: PhantomSet | None = None
    trained_on: str | None = None


class Row(Frozen):
    """One row of the tables: a method with its settings."""

    method: str
    label: str = ""
    group: Group | None = None
    profile: str | None = None
    updates: dict[str, int] = Field({})
    set: dict[str, Any] = Field({})
    predict: dict[str, Any] = Field({})
    seeds: list[int] | None = None
    datasets: list[str] | None = None


class Sweep(Row):
    """One row per value of one setting."""

    setting: str
    values: list[Value | list[Value]] = Field(min_length=1)
    inference: bool = False
    at: list[float] | None = None  # where each value lies on the axis of the figure; a list has no place of its own
    axis: str = ""  # what the axis shows
    figure: str = ""  # sweeps of one name share a figure, also those of several methods


class Figures(Frozen):
    """What is drawn of cells that were run with ``--keep-maps``."""

    rows: list[str] = Field([])  # if empty, those of the main tables
    datasets: list[str] = Field([])  # if empty, all that have maps
    cases: int = Field(2, ge=1, le=12, description="images of each data set in the grid of heat-maps")


class _File(Frozen):
    name: str
    seeds: list[int] = Field([0])
    profile: str = "paper"
    normative: bool = False
    both_rules: float = Field(0.0, ge=0.0, lt=1.0)  # share of normals that one more cell per row holds out for thresholds
    set: dict[str, Any] = Field({})
    datasets: dict[str, dict[str, Any]] = Field(min_length=1)
    figures: dict[str, Any] = Field({})
    rows: list[dict[str, Any]] = Field([])
    sweeps: list[dict[str, Any]] = Field([])


class Entry(NamedTuple):
    """One cell as the suite describes it, before any data is read."""

    row: str
    method: str
    group: str
    profile: str
    updates: dict[str, int]
    layers: tuple[dict[str, Any], ...]  # the suite's and the row's settings
    predict: dict[str, Any]
    setting: dict[str, Any] | None
    dataset: str
    trained_on: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its cell."""
        return cell_name(self.dataset, self.row, self.seed)


class Suite(NamedTuple):
    """A suite that has been checked."""

    name: str
    normative: bool
    datasets: dict[str, DataSet]
    entries: tuple[Entry, ...]
    figures: Figures = Figures()


def load_suite(path: Path) -> Suite:
    """Read and check a suite. A mistake is one line that names the file and the nearest known name."""
    try:
        file = parse(_File, read_toml(path))
        datasets = {name: _dataset(name, table, file.datasets) for name, table in file.datasets.items()}
        given = [_row(Row, table, f"row {i}", file) for i, table in enumerate(file.rows, start=1)]
        given += [_held_out(row, file) for row in given if file.both_rules and row.group not in ("sensitivity", "thresholds")]
        given += [_row(Sweep, table, f"sweep {i}", file) for i, table in enumerate(file.sweeps, start=1)]
        entries = tuple(_entries(file, [row for some in given for row in _table_rows(some)], datasets))
        if not entries:
            raise UserError("has no rows; give it [[rows]] with a method each")
        return Suite(file.name, file.normative, datasets, entries, _figures(file, entries))
    except UserError as err:
        raise UserError(str(err) if str(err).startswith(f"{path}:") else f"{path}: {err}") from None


class _TableRow(NamedTuple):
    row: Row
    label: str
    predict: dict[str, Any]
    change: dict[str, Any]
    setting: dict[str, Any] | None


def _figures(file: _File, entries: Sequence[Entry]) -> Figures:
    found = parse(Figures, file.figures, "figures")
    for what, names, known in (("row", found.rows, {e.row for e in entries}), ("data set", found.datasets, file.datasets)):
        for name in names:
            if name not in known:
                raise UserError(f"figures: unknown {what} '{name}'{nearest(name, known)}")
    return found


def _dataset(name: str, table: Mapping[str, Any], known: Mapping[str, Any]) -> DataSet:
    found = parse(DataSet, table, f"datasets.{name}")
    if slug(name) != name:
        raise UserError(f"data set '{name}': use lower-case letters, digits, dots, dashes and underscores in its name")
    if (found.manifest is None) == (found.phantom is None):
        raise UserError(f"data set '{name}' needs a manifest or a phantom, and not both")
    if found.trained_on is not None and found.trained_on not in known:
        raise UserError(f"data set '{name}': trained_on names no data set '{found.trained_on}'{nearest(found.trained_on, known)}")
    if found.trained_on is not None and known[found.trained_on].get("trained_on"):
        raise UserError(f"data set '{name}': nothing is trained on '{found.trained_on}', which has a trained_on itself")
    return found


def _row(cls: type[Row], table: Mapping[str, Any], where: str, file: _File) -> Row:
    row = parse(cls, table, where)
    if row.method not in METHODS and ":" not in row.method:
        raise UserError(f"{where}: unknown method '{row.method}'{nearest(row.method, METHODS)}")
    for name in row.datasets or ():
        if name not in file.datasets:
            raise UserError(f"{where}: unknown data set '{name}'{nearest(name, file.datasets)}")
    for table_name in row.predict:
        if table_name not in PREDICT_TABLES:
            raise UserError(f"{where}: predict may have the tables {' and '.join(PREDICT_TABLES)}, not '{table_name}'")
    seeds = row.seeds if row.seeds is not None else file.seeds
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError(f"{where}: seeds {seeds}: give each once, and none below 0")
    return row


def _held_out(row: Row, file: _File) -> Row:
    """The same row with a share of the normals held out and thresholds from these: our rule beside the paper's; one seed."""
    ours = {"data": {"holdout": file.both_rules}, "calibrate": {"reference": "held-out"}}
    text = f"{row.label or label(row.method)}, {file.both_rules:.0%} held out"
    seeds = (row.seeds if row.seeds is not None else file.seeds)[:1]
    return row.model_copy(update={"label": text, "group": "thresholds", "set": merge(row.set, ours), "seeds": seeds})


def _table_rows(row: Row) -> Iterator[_TableRow]:
    """One row of the tables, or one per value of a sweep, with the value in its label."""
    base = row.label or label(row.method)
    if not isinstance(row, Sweep):
        yield _TableRow(row, base, row.predict, {}, None)
        return
    if not row.setting.rpartition(".")[0]:
        raise UserError(f"sweep of '{row.setting}': write the setting with its table, e.g. model.{row.setting}")
    if row.inference and row.setting.partition(".")[0] not in PREDICT_TABLES:
        raise UserError(f"sweep of {row.setting}: only settings of {' and '.join(PREDICT_TABLES)} can differ at inference alone")
    if row.at is not None and len(row.at) != len(row.values):
        raise UserError(f"sweep of {row.setting}: 'at' has {len(row.at)} places for {len(row.values)} values")
    for i, value in enumerate(row.values):
        layer: Any = value
        for part in reversed(row.setting.split(".")):
            layer = {part: layer}
        predict = merge(row.predict, layer) if row.inference else row.predict
        text = base + value_suffix(row.setting, value)
        yield _TableRow(row, text, predict, {} if row.inference else layer, _setting(row, i))


def value_suffix(setting: str, value: Any) -> str:
    """What the label of a sweep's row has behind that of the sweep."""
    return f" {setting.rpartition('.')[2]}={value_text(value)}"


def value_text(value: Any) -> str:
    """A value of a sweep as labels show it."""
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _setting(row: Sweep, index: int) -> dict[str, Any]:
    """What figures and tables need to know of one value of a sweep."""
    extra = {"axis": row.axis, "figure": row.figure}
    place = {"at": row.at[index]} if row.at is not None else {}
    return {"name": row.setting, "value": row.values[index], **place, **{name: text for name, text in extra.items() if text}}


def _entries(file: _File, rows: list[_TableRow], datasets: Mapping[str, DataSet]) -> Iterator[Entry]:
    repeated, times = Counter(slug(row.label) for row in rows).most_common(1)[0] if rows else ("", 0)
    if times > 1:
        raise UserError(f"{times} rows are called '{repeated}'; give each a label of its own")
    for given, text, predict, change, setting in rows:
        group = given.group or ("sensitivity" if setting else "ours" if given.method in OURS else "baseline")
        for name in given.datasets or datasets:
            for seed in given.seeds if given.seeds is not None else file.seeds:
                yield Entry(
                    text, given.method, group, given.profile or file.profile, given.updates, (file.set, given.set, change),
                    predict, setting, name, datasets[name].trained_on or name, seed,
                )  # fmt: skip
