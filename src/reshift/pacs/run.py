"""``reshift pacs score``: fetch, score and push at the same time, series by series, each with a thread of its own.

fetch (thread) → spool → score (this thread, with the model) → push (thread). The ledger is written after every step, so a
run can be killed at any moment; the next one continues.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple

from reshift.errors import UserError
from reshift.inference.outputs import KINDS
from reshift.pacs.archive import Archive, CaseError, Options
from reshift.pacs.fetch import Fetched, Inbox, OursError, fetch_series
from reshift.pacs.ledger import Ledger, Row
from reshift.pacs.push import push_results
from reshift.pacs.query import Filters, list_instances, list_studies, parse_since
from reshift.pacs.scoring import check_model, claim, score_series, write_table
from reshift.pacs.spool import Spool, SpoolFullError
from reshift.pacs.studies import Studies
from reshift.system.files import remove_temporary_files
from reshift.system.lock import output_folder
from reshift.system.progress import Advance, progress

if TYPE_CHECKING:
    from reshift.inference.model import Model

GRACE = 5.0  # seconds for what is under way when a run is stopped; what it does not finish is done again
LISTED = "listed"  # fact in the ledger: when the last finished run asked for the list


class Plan(NamedTuple):
    """What the user asked for."""

    archive: Options
    out: Path
    filters: Filters = Filters()
    since: str | None = None
    push: bool = False
    max_studies: int | None = None
    spool: int = 4 * 2**30  # bytes
    overlays: str = "flagged"
    kinds: tuple[str, ...] = KINDS  # of DICOM results


class Summary(NamedTuple):
    """What the ledger says at the end, and how the time was spent."""

    series: int
    scored: int
    stored: int  # results
    failed: list[str]  # a line each
    notes: list[str]
    table: Path
    seconds: float
    waited: float  # seconds in which the model had nothing to score


def score_archive(model: "Model", plan: Plan) -> Summary:
    """Do everything that is left to do for the studies that match, and for those an earlier run did not finish."""
    check_model(model)
    with output_folder(plan.out), closing(Ledger(plan.out / "ledger.sqlite")) as ledger:
        remove_temporary_files(plan.out)  # of a run that was killed
        claim(ledger, model)
        begun, stop = datetime.now(UTC).isoformat(), Event()
        studies = _studies(Archive(plan.archive, stop), ledger, plan)
        with progress("studies", min(len(studies), plan.max_studies or len(studies))) as advance:
            run = _Run(model, plan, ledger, stop, advance)
            try:
                run.go(studies)
            finally:
                table = write_table(ledger, plan.out)
        if run.complete:
            ledger.note(LISTED, begun)
        return _summary(ledger, run, table)


def _studies(archive: Archive, ledger: Ledger, plan: Plan) -> list[str]:
    """All studies to look at; they are in the ledger before anything else is done, so that none is lost."""
    filters = plan.filters
    if plan.since is not None:
        dates = parse_since(plan.since, ledger.noted(LISTED))
        if "StudyDate" in filters.study:
            raise UserError("--new-since and a StudyDate in --query exclude each other; leave one out")
        filters = filters._replace(study={**filters.study, "StudyDate": dates})
    found = list(list_studies(archive, filters))
    ledger.belongs("archive", plan.archive.url, "belongs to another archive")  # now that it has answered
    before = [] if filters.studies else ledger.open_studies()
    ledger.add_studies(found)
    return list(dict.fromkeys([*before, *found]))


def _summary(ledger: Ledger, run: "_Run", table: Path) -> Summary:
    rows = ledger.all_series()
    failed = [f"{row.name}: {row.reason}" for row in rows if row.state == "failed"]
    scored = sum(row.state in ("scored", "pushed") for row in rows)
    lines = ledger.failed_studies() + failed
    return Summary(len(rows), scored, ledger.count_stored(), lines, run.studies.notes, table, run.seconds, run.waited)


class _Run:
    """The three threads of one run and what they share."""

    def __init__(self, model: "Model", plan: Plan, ledger: Ledger, stop: Event, advance: Advance) -> None:
        self.model, self.plan, self.ledger, self.stop = model, plan, ledger, stop
        self.spool = Spool(plan.out / "spool", plan.spool)
        self.studies = Studies(ledger, advance)
        self.fetched, self.to_push = Queue[str | None](), Queue[str | None]()
        self.error: BaseException | None = None
        self.complete = False  # every study was looked at
        self.seconds = self.waited = 0.0

    def go(self, studies: list[str]) -> None:
        """Run until everything is done, or until the archive as a whole fails."""
        begun = time.monotonic()
        self.spool.clean({row.name for row in self.ledger.all_series() if row.state == "fetched"})
        threads = [Thread(target=self._guarded, args=work, daemon=True) for work in ((self._fetch, studies), (self._push,))]
        for thread in threads:
            thread.start()
        try:
            for name in self._arriving():
                self._score(name)
        except BaseException:  # Ctrl-C
            self.stop.set()
            raise
        finally:
            self.to_push.put(None)
            for thread in threads:
                thread.join(GRACE if self.stop.is_set() else None)
            self.seconds = time.monotonic() - begun
        if self.error is not None:
            raise self.error

    def _guarded(self, *work: object) -> None:
        """Whatever ends a thread ends the run."""
        target, *arguments = work
        try:
            target(*arguments)  # type: ignore[operator]
        except BaseException as err:
            self.error = self.error or err
            self.stop.set()
        finally:
            if target == self._fetch:
                self.fetched.put(None)

    def _arriving(self) -> Iterator[str]:
        while not self.stop.is_set():
            begun = time.monotonic()
            name = self.fetched.get()
            self.waited += time.monotonic() - begun
            if name is None:
                return
            yield name

    def _fetch(self, studies: list[str]) -> None:
        archive, taken = Archive(self.plan.archive, self.stop), 0
        for study in studies:
            try:
                rows = self.studies.open(archive, study, self.plan.filters, push=self.plan.push)
            except CaseError as err:
                self.studies.fail(study, str(err))
                continue
            if rows and taken == self.plan.max_studies:
                return
            taken += bool(rows)
            self.studies.begin(study, len(rows))
            for row in rows:
                self._route(archive, row)
                if self.stop.is_set():
                    return
        self.complete = True

    def _route(self, archive: Archive, row: Row) -> None:
        """Take up a series where it was left."""
        results = self.ledger.results(row.name)
        if results and all((self.plan.out / result.path).is_file() for result in results):
            self.ledger.set_state(row.name, "scored")
            self._after_scoring(row)
        elif row.state == "fetched" and self.spool.has(row.name, row.bytes):
            self.spool.take(row.name, row.bytes)
            self.fetched.put(row.name)
        else:
            self._fetch_series(archive, row)

    def _fetch_series(self, archive: Archive, row: Row) -> None:
        try:
            expected = list_instances(archive, row.study, row.uid)
            if expected and not any(_may_be_image(kind) for kind in expected.values()):
                raise OursError("it has no images")
            got = self._into_spool(archive, row, expected)
            self.spool.finish(row.name, got.size)
        except OursError as err:
            self._end(row, "skipped", str(err))
        except (CaseError, SpoolFullError) as err:
            self._end(row, "failed", str(err))
        else:
            self.ledger.fetched(row.name, got.instances, got.size)
            self.fetched.put(row.name)
        finally:
            self.spool.give_up(row.name)

    def _into_spool(self, archive: Archive, row: Row, expected: dict[str, str]) -> Fetched:
        """A full disk may have room again when the series before this one are scored."""
        for last in (False, True):
            self.spool.wait_for_room(self.stop, empty=last)
            try:
                return fetch_series(archive, row.study, row.uid, expected, Inbox(self.spool.begin(row.name), self.plan.spool))
            except SpoolFullError:
                self.spool.give_up(row.name)
                if last:
                    raise
        raise AssertionError

    def _score(self, name: str) -> None:
        row = self.ledger.series(name)
        try:
            found = score_series(self.model, self.spool.folder / name, self.plan.out, self.plan.overlays, self.plan.kinds)
        except UserError as err:
            self._end(row, "failed", str(err))
        else:
            self.ledger.scored(name, found.score, found.flagged, found.results)
            self.studies.notes.extend(f"{name}: {note}" for note in found.notes)
            self._after_scoring(row)
        self.spool.remove(name)

    def _after_scoring(self, row: Row) -> None:
        if self.plan.push:
            self.to_push.put(row.name)
        else:
            self.studies.finish_series(row.study)

    def _push(self) -> None:
        archive = Archive(self.plan.archive, self.stop)
        while (name := self.to_push.get()) is not None:
            row = self.ledger.series(name)
            try:
                push_results(archive, self.ledger, row.study, self.ledger.results(name), self.plan.out)
            except CaseError as err:
                self._end(row, "failed", str(err))
            else:
                self._end(row, "pushed")
            if self.stop.is_set():
                return

    def _end(self, row: Row, state: str, reason: str | None = None) -> None:
        self.ledger.set_state(row.name, state, reason)
        self.studies.finish_series(row.study)


def _may_be_image(kind: str) -> bool:
    from pydicom.uid import UID

    known = UID(kind)
    return not kind or known.name == known or "Image Storage" in known.name
