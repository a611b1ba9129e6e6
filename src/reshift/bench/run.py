"""``reshift bench``: find out which cells are missing, run them, and write the tables."""

import fnmatch
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from reshift.bench.cells import SUITE_FIELDS, Event, Spec, Task, cell_name, read_cells, write_cell
from reshift.bench.plan import Blocked, Plan, group_tasks, plan
from reshift.bench.suite import Suite, load_suite
from reshift.config import nearest
from reshift.errors import UserError, reason
from reshift.evaluation.normative import WITHOUT_LPIPS
from reshift.nets.lpips import NAME as LPIPS
from reshift.system.files import create_output_folder, remove_temporary_files
from reshift.system.lock import locked
from reshift.weights.find import available

DONE, INCOMPLETE = 0, 3
MAX_NAMES = 12  # in one line; the others are counted
ENGINES, TRACKERS = ("local", "ray"), ("tensorboard", "mlflow")
Print = Callable[[str], object]
Engine = Callable[[Sequence[Task], int, str, Callable[[Event], object]], None]


class Options(NamedTuple):
    """The options of the command."""

    suite: Path
    out: Path
    data: Path | None = None
    engine: str = "local"
    workers: int = 0
    device: str = "auto"
    only: str | None = None
    all: bool = False
    track: tuple[str, ...] = ()
    keep_maps: int = 0


class Status(NamedTuple):
    """A suite, and the cells that have been computed."""

    suite: Suite
    plan: Plan
    cells: dict[Path, dict[str, Any]]

    def done(self) -> dict[str, dict[str, Any]]:
        """Finished cells by key."""
        return {cell["key"]: cell for cell in self.cells.values() if cell["status"] == "done"}

    def missing(self) -> list[Spec]:
        """Cells to run."""
        done = self.done()
        return [spec for spec in self.plan.specs if spec.key not in done]

    def imported(self) -> dict[str, dict[str, Any]]:
        """Cells of another machine whose data is not here, by name."""
        names = {blocked.entry.name for blocked in self.plan.blocked}
        latest = sorted(self.done().values(), key=lambda cell: str(cell["date"]))
        known = {name_of(cell): cell for cell in latest if cell["suite"] == self.suite.name}
        return {name: cell for name, cell in known.items() if name in names}

    def blocked(self) -> list[Blocked]:
        """Cells that can neither be run nor shown."""
        imported = self.imported()
        return [blocked for blocked in self.plan.blocked if blocked.entry.name not in imported]

    def unused(self) -> list[dict[str, Any]]:
        """Finished cells that the suite does not have, or no longer has in this form."""
        keys = {spec.key for spec in self.plan.specs} | {cell["key"] for cell in self.imported().values()}
        return [cell for cell in self.cells.values() if cell["key"] not in keys and cell["status"] == "done"]

    def finished(self) -> int:
        """How many cells of the suite need no more work."""
        return len(self.plan.specs) - len(self.missing()) + len(self.imported())


def name_of(cell: Mapping[str, Any]) -> str:
    """The name under which a record was written."""
    return cell_name(cell["dataset"], cell["row"], cell["seed"])


def bench(options: Options, say: Print, warn: Print) -> int:
    """Run the missing cells, write tables and figures, and return the exit code."""
    engine = _engine(options.engine, options.device)
    for name in options.track:
        if name not in TRACKERS:
            raise UserError(f"--track {name}: unknown{nearest(name, TRACKERS)}")
    suite = load_suite(options.suite)
    create_output_folder(options.out)
    with locked(options.out):
        _remove_unfinished(options.out)
        status = read_status(suite, options, warn)
        describe(status, say)
        wanted = choose(status, options.only)
        if wanted:
            _run(engine, group_tasks(wanted, options.out, options.keep_maps), status, options, warn)
        status = status._replace(cells=read_cells(options.out)[0])
        _write_missing_names(status, options.out)
        make_tables(status, options)
    _warn_without_maps(status, options, warn)
    _warn_blocked(status, warn)
    refused = _warn_refused(status, warn)
    say(f"{status.finished()} of {status.plan.total()} cells finished")
    done = status.done()
    failed = any(spec.key not in done for spec in wanted)  # the view has shown them
    return INCOMPLETE if failed or refused or status.blocked() else DONE


def tables_only(options: Options, say: Print, warn: Print) -> int:
    """Write tables and figures of the finished cells."""
    status = read_status(load_suite(options.suite), options, warn)
    describe(status, say)
    make_tables(status, options)
    say(f"tables: {options.out / 'tables.md'}")
    return DONE


def dry_run(options: Options, say: Print, warn: Print) -> int:
    """List the cells, finished or not, and estimate the time of the rest."""
    from reshift.bench.cost import estimate

    status = read_status(load_suite(options.suite), options, warn)
    describe(status, say)
    wanted = choose(status, options.only)
    done, keys = status.done(), {spec.key for spec in wanted}
    for spec in status.plan.specs:
        say(f"{'cached' if spec.key in done else 'to run' if spec.key in keys else 'left out':9} {spec.name}")
    for name in status.imported():
        say(f"{'cached':9} {name} (from another machine; its data is not here)")
    for blocked in status.blocked():
        say(f"{'blocked':9} {blocked.entry.name}")
    for line in estimate(group_tasks(wanted, options.out), list(done.values()), options.workers, options.device):
        say(line)
    _warn_blocked(status, warn)
    return DONE


def read_status(suite: Suite, options: Options, warn: Print) -> Status:
    """Compare the suite with the cells in the output folder."""
    cells, warnings = read_cells(options.out)
    for line in warnings:
        warn(line)
    try:
        return Status(suite, plan(suite, options.data, options.out), cells)
    except UserError as err:
        raise UserError(f"{options.suite}: {err}" if str(err).startswith("row '") else str(err)) from None


def describe(status: Status, say: Print) -> None:
    """Say how many cells are finished, which are missing, and which finished ones the suite does not have."""
    missing = status.missing()
    say(f"{status.suite.name}: {status.plan.total()} cells, {status.finished()} finished and valid, {len(missing)} to run")
    if status.suite.normative and not available(LPIPS):
        say(WITHOUT_LPIPS)  # before hours of work
    for dataset, why in {spec.dataset: spec.record()["data_caveat"] for spec in status.plan.specs}.items():
        if why:
            say(f"caveat of {dataset}: {why}")
    failed = {name_of(cell) for cell in status.cells.values() if cell["status"] == "failed"}
    again = {spec.name for spec in missing} & failed
    if again:
        say(f"failed before, tried again: {_some(sorted(again))}")
    if status.finished() and missing:
        say(f"new: {_some([spec.name for spec in missing if spec.name not in again]) or 'none'}")
    for why, names in _why_unused(status.plan.specs, status.unused()).items():
        say(f"finished, but {why} (kept; --all shows them): {_some(names)}")


def _why_unused(specs: Sequence[Spec], unused: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Names of finished cells that the suite does not have, by the reason."""
    wanted = {spec.name: spec.record() for spec in specs}
    found: dict[str, list[str]] = {}
    words = {"code": "of other code", "data": "of other data", "config": "with other settings", "predict": "with other settings"}
    for cell in unused:
        now = wanted.get(name_of(cell))
        differing = [text for name, text in words.items() if now and now[name] != cell[name]]
        why = "not in this suite" if now is None else " and ".join(dict.fromkeys(differing)) or "with other settings"
        found.setdefault(why, []).append(name_of(cell))
    return found


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def choose(status: Status, only: str | None) -> list[Spec]:
    """The missing cells that ``--only`` selects."""
    missing = status.missing()
    if only is None:
        return missing
    names = [spec.name for spec in status.plan.specs] + [blocked.entry.name for blocked in status.plan.blocked]
    if not fnmatch.filter(names, only):
        raise UserError(f"--only {only}: no cell has such a name; they look like {names[0]}")
    return [spec for spec in missing if fnmatch.fnmatch(spec.name, only)]


def _engine(name: str, device: str) -> Engine:
    if name == "local":
        from reshift.bench.local_engine import devices, run_local

        devices(0, device)  # refuses a wrong device before any work
        return run_local
    if name == "ray":
        from reshift.bench.ray_engine import run_ray

        return run_ray
    raise UserError(f"unknown engine '{name}'{nearest(name, ENGINES)}")


def _run(engine: Engine, tasks: Sequence[Task], status: Status, options: Options, warn: Print) -> None:
    from reshift.bench.track import Tracker, tracking
    from reshift.bench.view import live

    files = {spec.name: options.out / "cells" / spec.file for task in tasks for spec in task.cells}
    finished = {spec.key: spec.name for spec in status.plan.specs if spec.key in status.done()}
    kinds = cast("Sequence[Tracker]", options.track)
    with tracking(kinds, options.out) as track, live(len(files) + len(finished), list(status.suite.datasets)) as show:
        for name in finished.values():
            show(Event("cached", name))

        def report(event: Event) -> None:
            show(event)
            if options.track and event.kind == "done":
                try:
                    track(json.loads(files[event.cell].read_text(encoding="utf-8")))
                except Exception as err:  # the benchmark goes on if a tracking server does not answer
                    warn(f"{event.cell} could not be tracked ({reason(err)})")

        engine(tasks, options.workers, options.device, report)


def _remove_unfinished(out: Path) -> None:
    """Remove unfinished files of a killed run. We hold the lock, so no other process writes here."""
    for folder in (out, out / "cells", *(out / "evaluations").glob("*"), *(out / "stages").glob("*")):
        remove_temporary_files(folder)


def _suite_fields(spec: Spec) -> dict[str, Any]:
    record = spec.record()
    return {name: record[name] for name in (*SUITE_FIELDS, "caveat", "data_caveat")}


def _write_missing_names(status: Status, out: Path) -> None:
    """Give every row its own file, also if another row or another machine has computed the same cell."""
    done = status.done()
    for spec in status.plan.specs:
        cell, names = done.get(spec.key), _suite_fields(spec)
        same = [other for other in status.cells.values() if other["key"] == spec.key]
        if cell is not None and not any(other | names == other for other in same):
            write_cell(out, spec.file, {**cell, **names})


def make_tables(status: Status, options: Options) -> None:
    """Write tables and figures under the suite's names; with ``--all`` also of cells that the suite does not have."""
    from reshift.bench.tables import write_tables

    by_key = {cell["key"]: cell for cell in status.cells.values()} | status.done()  # a finished cell before a failed one
    cells = [{**by_key[spec.key], **_suite_fields(spec)} for spec in status.plan.specs if spec.key in by_key]
    cells += status.imported().values()
    if options.all:
        names = {name_of(cell) for cell in cells}
        cells += [cell for cell in status.unused() if name_of(cell) not in names]
    write_tables(cells, options.out, status.suite.figures)


def _warn_without_maps(status: Status, options: Options, warn: Print) -> None:
    """Finished cells are not evaluated again, so some may lack the maps that are asked for now."""
    if not options.keep_maps:
        return
    done = status.done()
    folders = {spec.name: options.out / "evaluations" / spec.key / "arrays" for spec in status.plan.specs if spec.key in done}
    if bare := [name for name, folder in folders.items() if not folder.exists()]:
        warn(f"{len(bare)} finished cells have no heat-maps; delete their files in cells/ to evaluate them again: {_some(bare)}")


def _warn_blocked(status: Status, warn: Print) -> None:
    found: dict[str, list[str]] = {}
    for blocked in status.blocked():
        found.setdefault(blocked.why, []).append(blocked.entry.name)
    for why, names in found.items():
        warn(f"blocked: {why}; without it {len(names)} cells cannot be run: {_some(names)}")


def _warn_refused(status: Status, warn: Print) -> int:
    """Name the test images that finished cells could not score, and count them."""
    done, found = status.done(), dict[str, list[str]]()
    for spec in status.plan.specs:
        for line in done.get(spec.key, {}).get("refused", ()):
            found.setdefault(line, []).append(spec.name)
    for line, names in list(found.items())[:MAX_NAMES]:
        warn(f"left out: {line}; {len(names)} cells have no result for it: {_some(names)}")
    if len(found) > MAX_NAMES:
        warn(f"left out: {len(found) - MAX_NAMES} more test images; cells/*.json list them under 'refused'")
    return len(found)
