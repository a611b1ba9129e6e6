"""Which series of a study still need work, and when all of them are done."""

from collections.abc import Callable
from threading import Lock

from reshift.pacs.archive import Archive, CaseError
from reshift.pacs.ledger import Ledger, Row
from reshift.pacs.query import NO_IMAGES, Filters, FoundSeries, list_series

OUR_DESCRIPTION = "Reshift "  # begins the descriptions of our own series


class Studies:
    """The studies of one run; any thread may report that a series is done."""

    def __init__(self, ledger: Ledger, done: Callable[[], None]) -> None:
        self.ledger = ledger
        self.done = done  # called once for every study
        self.notes = list[str]()
        self._left = dict[str, int]()
        self._lock = Lock()

    def open(self, archive: Archive, study: str, filters: Filters, *, push: bool) -> list[Row]:
        """The series that need work: found now, or left by an earlier run."""
        listed = list_series(archive, study, filters)
        if not listed and not filters.series:
            raise CaseError("a study: it is not in the archive, or has no series")
        for found in listed:
            if not self._is_result(found) and found.modality not in NO_IMAGES:
                self._look_at(self.ledger.add_series(study, found.uid, found.modality), found)
        return [row for row in self.ledger.all_series(study) if needs_work(row, push=push)]

    def begin(self, study: str, series: int) -> None:
        """Expect so many series to be done."""
        with self._lock:
            self._left[study] = series
        if series == 0:
            self._close(study)

    def finish_series(self, study: str) -> None:
        """One of them is done, in whatever way."""
        with self._lock:
            self._left[study] -= 1
            last = self._left[study] == 0
        if last:
            self._close(study)

    def fail(self, study: str, reason: str) -> None:
        """A study that could not even be opened."""
        self.ledger.end_study(study, "failed", reason)
        self.done()

    def _close(self, study: str) -> None:
        failed = any(row.state == "failed" for row in self.ledger.all_series(study))
        self.ledger.end_study(study, "failed" if failed else "done")
        self.done()

    def _is_result(self, found: FoundSeries) -> bool:
        return found.description.startswith(OUR_DESCRIPTION) or self.ledger.is_result_series(found.uid)

    def _look_at(self, row: Row, found: FoundSeries) -> None:
        if row.state in ("scored", "pushed") and found.instances > row.instances > 0:
            more = found.instances - row.instances
            self.notes.append(f"{row.name}: {more} instances came after it was scored; score it again into another --out")


def needs_work(row: Row, *, push: bool) -> bool:
    """Whether something is left to do for a series; what failed is tried again."""
    return row.state in ("found", "fetched", "failed") or (push and row.state == "scored")
