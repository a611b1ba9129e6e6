"""Store results in the archive (STOW-RS), each once: what it has already, by a look-up of the UIDs, is not sent again."""

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reshift.pacs.archive import Archive, CaseError, RefusedError
from reshift.pacs.ledger import Ledger, Result
from reshift.pacs.query import list_instances
from reshift.pacs.uids import is_uid
from reshift.system.files import writing

BATCH = 2**24  # bytes in one request, unless one object is larger
CHUNK = 2**18


class Body:
    """A multipart request of files. It has a length and can be read again, so that a request can be repeated."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.boundary = uuid.uuid4().hex
        self.files = files
        self.head = f"--{self.boundary}\r\nContent-Type: application/dicom\r\n\r\n".encode()
        self.tail = f"--{self.boundary}--\r\n".encode()

    def __len__(self) -> int:
        return sum(len(self.head) + path.stat().st_size + 2 for path in self.files) + len(self.tail)

    def __iter__(self) -> Iterator[bytes]:
        for path in self.files:
            yield self.head
            with path.open("rb") as file:
                while piece := file.read(CHUNK):
                    yield piece
            yield b"\r\n"
        yield self.tail


def push_results(archive: Archive, ledger: Ledger, study: str, results: Sequence[Result], out: Path) -> None:
    """Store what the ledger does not know to be stored. Each answer is written down before the next request."""
    left = [result for result in results if not result.stored]
    for series in dict.fromkeys(result.series for result in left):
        mine = [result for result in left if result.series == series]
        there = _stored_already(archive, study, series)
        ledger.stored(result.sop for result in mine if result.sop in there)
        for batch in _batches([result for result in mine if result.sop not in there], out):
            _store(archive, ledger, study, batch, out)


def _stored_already(archive: Archive, study: str, series: str) -> set[str]:
    """The instances of one of our series; an archive may answer with 404 to a series it does not have."""
    try:
        return set(list_instances(archive, study, series))
    except RefusedError as err:
        if "404" in str(err):
            return set()
        raise


def _batches(results: Sequence[Result], out: Path) -> Iterator[list[Result]]:
    batch, size = list[Result](), 0
    for result in results:
        with writing(out / result.path):
            more = (out / result.path).stat().st_size
        if batch and size + more > BATCH:
            yield batch
            batch, size = [], 0
        batch, size = [*batch, result], size + more
    if batch:
        yield batch


def _store(archive: Archive, ledger: Ledger, study: str, batch: Sequence[Result], out: Path) -> None:
    body = Body([out / result.path for result in batch])
    try:
        answer = archive.call("the results", lambda: _post(archive, study, body))
    except RefusedError:
        if len(batch) == 1:
            raise
        for result in batch:  # one of them is too large, or not to the archive's taste: the others are stored
            _store(archive, ledger, study, [result], out)
        return
    named = _referenced(answer, "00081199")
    if any(result.sop not in named for result in batch):  # refused, there before, or the answer does not say
        named |= set[str]().union(*(_stored_already(archive, study, series) for series in {result.series for result in batch}))
    ledger.stored(result.sop for result in batch if result.sop in named)
    if refused := [result for result in batch if result.sop not in named]:
        reasons = sorted({f"0x{code:04X}" for code in _failures(answer)}) or ["no reason given"]
        raise CaseError(f"the archive did not store {len(refused)} of {len(batch)} results ({', '.join(reasons)})")


def _post(archive: Archive, study: str, body: Body) -> Any:
    """The archive's answer, as JSON where it is; any success counts, and a look-up tells what it stored."""
    content = f'multipart/related; type="application/dicom"; boundary={body.boundary}'
    answer = archive.session.post(
        archive.address(f"studies/{study}"),
        data=body,
        headers={"Content-Type": content, "Accept": "application/dicom+json"},
        timeout=archive.options.timeout,
    )
    if answer.status_code != 409:  # all were refused; the body says why
        answer.raise_for_status()
    try:
        return answer.json()
    except ValueError:
        return {}


def _items(answer: Any, tag: str) -> list[dict[str, Any]]:
    answer = answer[0] if isinstance(answer, list) and answer else answer
    element = answer.get(tag) if isinstance(answer, dict) else None
    values = element.get("Value") if isinstance(element, dict) else None
    return [item for item in values if isinstance(item, dict)] if isinstance(values, list) else []


def _values(item: dict[str, Any], tag: str) -> list[Any]:
    element = item.get(tag)
    values = element.get("Value") if isinstance(element, dict) else None
    return values if isinstance(values, list) else []


def _referenced(answer: Any, tag: str) -> set[str]:
    return {value for item in _items(answer, tag) for value in _values(item, "00081155") if is_uid(value)}


def _failures(answer: Any) -> list[int]:
    return [value for item in _items(answer, "00081198") for value in _values(item, "00081197") if isinstance(value, int)]
