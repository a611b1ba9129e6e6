"""``reshift bench``: what is finished, what is missing, run the rest, make the tables."""

import fnmatch
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from reshift.bench.cells import SHOWN_AS, Spec, Task, read_cells, slug, write_cell
from reshift.bench.events import Event
from reshift.bench.lock import identity, locked
from reshift.bench.plan import Blocked, Plan, plan, tasks
from reshift.bench.suite import Suite, load_suite
from reshift.config import nearest
from reshift.errors import UserError, reason
from reshift.system.files import sweep, writable_folder

DONE, INCOMPLETE = 0, 3
LISTED = 12  # names in a line; the rest is counted
ENGINES, TRACKERS = ("local", "ray"), ("tensorboard", "mlflow")
Say = Callable[[str], object]


class Options(NamedTuple):
    """What the command line says."""

    suite: Path
    out: Path
    data: Path | None = None
    engine: str = "local"
    workers: int = 0
    device: str = "auto"
    only: str | None = None
    all: bool = False
    track: tuple[str, ...] = ()


class Standing(NamedTuple):
    """A suite beside what has been computed of it."""

    suite: Suite
    plan: Plan
    cells: dict[Path, dict[str, Any]]

    def done(self) -> dict[str, dict[str, Any]]:
        """Finished cells by key."""
        return {cell["key"]: cell for cell in self.cells.values() if cell["status"] == "done"}

    def missing(self) -> list[Spec]:
        """Cells to be run."""
        done = self.done()
        return [spec for spec in self.plan.specs if spec.key not in done]

    def elsewhere(self) -> dict[str, dict[str, Any]]:
        """Cells whose data is not here, but whose result has been brought from another machine; by name."""
        names = {blocked.entry.name for blocked in self.plan.blocked}
        latest = sorted(self.done().values(), key=lambda cell: str(cell["date"]))
        known = {name_of(cell): cell for cell in latest if cell["suite"] == self.suite.name}
        return {name: cell for name, cell in known.items() if name in names}

    def blocked(self) -> list[Blocked]:
        """Cells that can neither be run nor shown."""
        return [blocked for blocked in self.plan.blocked if blocked.entry.name not in self.elsewhere()]

    def left_over(self) -> dict[Path, dict[str, Any]]:
        """Finished cells that the suite does not have, or no longer has in this form."""
        keys = {spec.key for spec in self.plan.specs} | {cell["key"] for cell in self.elsewhere().values()}
        return {path: cell for path, cell in self.cells.items() if cell["key"] not in keys and cell["status"] == "done"}


def name_of(cell: Mapping[str, Any]) -> str:
    """The name that a record's own spec would have."""
    return f"{cell['dataset']}-{slug(cell['row'])}-{cell['seed']}"


def bench(options: Options, say: Say, warn: Say) -> int:
    """Run what is missing, and write tables and figures; return the exit code."""
    engine = _engine(options.engine, options.device)
    for name in options.track:
        if name not in TRACKERS:
            raise UserError(f"--track {name}: unknown{nearest(name, TRACKERS)}")
    suite = load_suite(options.suite)
    writable_folder(options.out)
    with locked(options.out):
        _sweep(options.out)
        standing = look(suite, options, warn)
        explain(standing, say)
        wanted = chosen(standing, options.only)
        if wanted:
            _run(engine, tasks(wanted, options.out), standing, options, warn)
        standing = standing._replace(cells=read_cells(options.out)[0])
        _name_all(standing, options.out)
        tables(standing, options)
    return conclude(standing, wanted, say, warn)


def tables_only(options: Options, say: Say, warn: Say) -> int:
    """Write tables and figures of what is finished."""
    standing = look(load_suite(options.suite), options, warn)
    explain(standing, say)
    tables(standing, options)
    say(f"tables: {options.out / 'tables.md'}")
    return DONE


def dry_run(options: Options, say: Say, warn: Say) -> int:
    """List the cells, finished or not, and what the rest will cost."""
    from reshift.bench.cost import estimate

    standing = look(load_suite(options.suite), options, warn)
    explain(standing, say)
    wanted = chosen(standing, options.only)
    done, keys = standing.done(), {spec.key for spec in wanted}
    for spec in standing.plan.specs:
        say(f"{'cached' if spec.key in done else 'to run' if spec.key in keys else 'left out':9} {spec.name}")
    for name in standing.elsewhere():
        say(f"{'cached':9} {name} (from another machine; its data is not here)")
    for blocked in standing.blocked():
        say(f"{'blocked':9} {blocked.entry.name}")
    for line in estimate(tasks(wanted, options.out), list(done.values()), options.workers, options.device):
        say(line)
    _say_blocked(standing, warn)
    return DONE


def look(suite: Suite, options: Options, warn: Say) -> Standing:
    """Compare the suite with the cells at hand."""
    cells, warnings = read_cells(options.out)
    for line in warnings:
        warn(line)
    return Standing(suite, plan(suite, options.data, options.out), cells)


def explain(standing: Standing, say: Say) -> None:
    """Say which finished cells are still good, which are missing, and which the suite does not have."""
    specs, missing, left = standing.plan.specs, standing.missing(), standing.left_over()
    known = len(specs) - len(missing) + len(standing.elsewhere())
    say(f"{standing.suite.name}: {standing.plan.cells()} cells, {known} finished and valid, {len(missing)} to run")
    again = {spec.name for spec in missing} & {name_of(cell) for cell in standing.cells.values() if cell["status"] == "failed"}
    if again:
        say(f"failed before, tried again: {listed(sorted(again))}")
    if known and missing:
        say(f"new: {listed([spec.name for spec in missing if spec.name not in again]) or 'none'}")
    for why, names in _reasons(standing.plan.specs, left.values()).items():
        say(f"finished, but {why} (kept; --all shows them): {listed(names)}")


def _reasons(specs: Sequence[Spec], left: Any) -> dict[str, list[str]]:
    """Why finished cells are not this suite's, in words."""
    wanted = {spec.name: spec.about() for spec in specs}
    found: dict[str, list[str]] = {}
    words = {"code": "of other code", "data": "of other data", "config": "with other settings", "predict": "with other settings"}
    for cell in left:
        now = wanted.get(name_of(cell))
        differing = [text for name, text in words.items() if now and now[name] != cell[name]]
        why = "not in this suite" if now is None else " and ".join(dict.fromkeys(differing)) or "with other settings"
        found.setdefault(why, []).append(name_of(cell))
    return found


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def chosen(standing: Standing, only: str | None) -> list[Spec]:
    """What is missing, as far as ``--only`` lets it."""
    missing = standing.missing()
    if only is None:
        return missing
    names = [spec.name for spec in standing.plan.specs] + [blocked.entry.name for blocked in standing.plan.blocked]
    if not fnmatch.filter(names, only):
        raise UserError(f"--only {only}: no cell has such a name; they look like {names[0]}")
    return [spec for spec in missing if fnmatch.fnmatch(spec.name, only)]


def _engine(name: str, device: str) -> Callable[[Sequence[Task], int, str, Callable[[Event], object]], None]:
    if name == "local":
        from reshift.bench.engine import devices, run_local

        devices(0, device)  # a wrong one shows now
        return run_local
    if name == "ray":
        from reshift.bench.ray_engine import run_ray

        return run_ray
    raise UserError(f"unknown engine '{name}'{nearest(name, ENGINES)}")


def _run(engine: Callable[..., None], todo: Sequence[Task], standing: Standing, options: Options, warn: Say) -> None:
    from reshift.bench.track import Tracker, tracking
    from reshift.bench.view import live

    files = {spec.name: options.out / "cells" / spec.file for task in todo for spec in task.cells}
    finished = {spec.key: spec.name for spec in standing.plan.specs if spec.key in standing.done()}
    kinds = cast("Sequence[Tracker]", options.track)
    with tracking(kinds, options.out) as track, live(len(files) + len(finished), list(standing.suite.datasets)) as show:
        for name in finished.values():
            show(Event("cached", name))

        def report(event: Event) -> None:
            show(event)
            if options.track and event.kind == "done":
                try:
                    track(json.loads(files[event.cell].read_text(encoding="utf-8")))
                except Exception as err:  # a server that does not answer must not cost a benchmark
                    warn(f"{event.cell} could not be tracked ({reason(err)})")

        engine(todo, options.workers, options.device, report)


def _sweep(out: Path) -> None:
    """Remove what a killed run left of files it was writing; we hold the lock, so nobody else writes."""
    for folder in (out, out / "cells", *(out / "evaluations").glob("*"), *(out / "stages").glob("*")):
        sweep(folder)
    for half in (out / "data").glob(".*-*-*"):  # drawn by ``plan``, also of a dry run, which holds no lock
        pid = half.name.rpartition("-")[2]
        if pid.isdigit() and identity(int(pid))["began"] is None:
            shutil.rmtree(half, ignore_errors=True)


def shown(standing: Standing) -> list[dict[str, Any]]:
    """The suite's cells under the names that it gives them now; of several files with one key, a finished one."""
    by_key = {cell["key"]: cell for cell in standing.cells.values()} | standing.done()
    mine = [{**by_key[spec.key], **_names(spec)} for spec in standing.plan.specs if spec.key in by_key]
    return mine + list(standing.elsewhere().values())


def _names(spec: Spec) -> dict[str, Any]:
    about = spec.about()
    return {name: about[name] for name in (*SHOWN_AS, "caveat")}


def _name_all(standing: Standing, out: Path) -> None:
    """Give every row its own file, also where another row, or another machine, has computed the same."""
    for spec, cell in zip(standing.plan.specs, map(standing.done().get, (s.key for s in standing.plan.specs)), strict=True):
        names = _names(spec)
        if cell is not None and not any(_is(other, spec.key, names) for other in standing.cells.values()):
            write_cell(out, spec.file, {**cell, **names})


def _is(cell: Mapping[str, Any], key: str, names: Mapping[str, Any]) -> bool:
    return bool(cell["key"] == key and all(cell.get(name) == value for name, value in names.items()))


def tables(standing: Standing, options: Options) -> None:
    """Write tables and figures; with ``--all`` also of cells that the suite does not have."""
    from reshift.bench.tables import write_all

    cells = shown(standing)
    if options.all:
        mine = {name_of(cell) for cell in cells}
        cells += [cell for cell in standing.left_over().values() if name_of(cell) not in mine]
    write_all(cells, options.out)


def conclude(standing: Standing, wanted: Sequence[Spec], say: Say, warn: Say) -> int:
    """Say what is there now and what is not; return the exit code."""
    _say_blocked(standing, warn)
    missing, done = standing.missing(), standing.done()
    known = len(standing.plan.specs) - len(missing) + len(standing.elsewhere())
    say(f"{known} of {standing.plan.cells()} cells finished")
    failures = any(spec.key not in done for spec in wanted)  # the view has named them
    return INCOMPLETE if failures or standing.blocked() else DONE


def _say_blocked(standing: Standing, warn: Say) -> None:
    found: dict[str, list[str]] = {}
    for blocked in standing.blocked():
        found.setdefault(blocked.why, []).append(blocked.entry.name)
    for why, names in found.items():
        warn(f"blocked: {why}; without it {len(names)} cells cannot be run: {listed(names)}")
