"""``reshift pacs listen``: a storage server (C-STORE, C-ECHO) that scores every series that was sent to it."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from reshift.data.dicom.header import silence_pydicom
from reshift.errors import UserError
from reshift.inference.outputs import KINDS
from reshift.pacs.archive import ArchiveError, CaseError
from reshift.pacs.credentials import LOOPBACK
from reshift.pacs.forward import Peer, forward_results
from reshift.pacs.guard import MAX_PDU, SECONDS, guarded_server
from reshift.pacs.ledger import Ledger
from reshift.pacs.receive import LATE, SUCCESS, Receiver, is_late
from reshift.pacs.scoring import check_model, claim, score_series, write_table
from reshift.pacs.spool import Spool
from reshift.system.files import remove_temporary_files
from reshift.system.lock import output_folder

if TYPE_CHECKING:
    from reshift.inference.model import Model

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds before results are sent again
POLL = 0.1  # seconds


class Plan(NamedTuple):
    """What the user asked for."""

    title: str
    port: int
    out: Path
    host: str = "127.0.0.1"
    allow: Sequence[str] = ()
    forward: Peer | None = None
    quiet: float = 5.0  # seconds
    spool: int = 4 * 2**30  # bytes
    overlays: str = "flagged"
    kinds: tuple[str, ...] = KINDS  # of DICOM results


class Summary(NamedTuple):
    """What happened while it ran."""

    scored: int
    failed: int
    table: Path


def listen(model: "Model", plan: Plan, log: Callable[[str], None]) -> Summary:
    """Receive, score and forward until Ctrl-C or SIGTERM."""
    check_model(model)
    if plan.host not in LOOPBACK and not plan.allow:
        raise UserError(f"--host {plan.host}: say who may send, with --allow AET; anybody could otherwise")
    with output_folder(plan.out), closing(Ledger(plan.out / "ledger.sqlite")) as ledger:
        remove_temporary_files(plan.out)  # of a run that was killed
        claim(ledger, model)
        ledger.belongs("archive", f"listen {plan.title}", "belongs to an archive, or to another AE title")
        service = _Service(model, plan, ledger, log)
        with service.sending(), _server(plan, service.receiver, log):
            log(f"listening as {plan.title} on {plan.host}:{plan.port}")
            try:
                service.run()
            except KeyboardInterrupt:
                log("stopping; what was received is kept")
        return Summary(service.scored, service.failed, write_table(ledger, plan.out))


class _Service:
    """Scores what is complete; a thread sends the results on."""

    def __init__(self, model: "Model", plan: Plan, ledger: Ledger, log: Callable[[str], None]) -> None:
        self.model, self.plan, self.ledger, self.log = model, plan, ledger, log
        self.stop = Event()
        self.spool = Spool(plan.out / "spool", plan.spool)
        self.receiver = Receiver(ledger, plan.out / "incoming", plan.spool, plan.quiet, log)
        self.results = Queue[str]()
        self.scored = self.failed = 0

    def run(self) -> None:
        """Score for ever, first what an earlier run had received."""
        waiting = [row.name for row in self.ledger.all_series() if row.state == "fetched"]
        self.spool.clean(set(waiting))
        for name in waiting:
            self._score(name)
        while True:
            for name in self.receiver.complete(self.spool.folder):
                self._score(name)
            time.sleep(POLL)

    def _score(self, name: str) -> None:
        row, folder = self.ledger.series(name), self.spool.folder / name
        try:
            if not self.spool.has(name, row.bytes):
                raise UserError("its files are damaged; send it again")
            if is_late(self.ledger, name, row.instances):
                raise UserError(LATE)
            found = score_series(self.model, folder, self.plan.out, self.plan.overlays, self.plan.kinds)
        except UserError as err:
            self._fail(name, str(err))
        else:
            self.ledger.scored(name, found.score, found.flagged, found.results)
            self.scored += 1
            self.log(f"{name}: scored, {row.instances} instances, {found.flagged} flagged")
            for note in found.notes:
                self.log(f"{name}: {note}")
            if self.plan.forward is not None:
                self.results.put(name)
        self.spool.remove(name)
        self.receiver.freed(row.bytes)

    def _fail(self, name: str, reason: str) -> None:
        self.failed += 1
        self.ledger.set_state(name, "failed", reason)
        self.log(f"{name}: failed, {reason}")

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send results on during the block."""
        thread = Thread(target=self._send, daemon=True)
        if self.plan.forward is not None:
            for row in self.ledger.all_series():
                unsent = any(not result.stored for result in self.ledger.results(row.name))
                if unsent and row.state in ("scored", "failed"):
                    self.results.put(row.name)
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            if thread.is_alive():
                thread.join(SECONDS)

    def _send(self) -> None:
        peer, wait = self.plan.forward, FIRST_WAIT
        assert peer is not None
        while not self.stop.is_set():
            try:
                name = self.results.get(timeout=POLL)
            except Empty:
                continue
            try:
                forward_results(peer, self.plan.title, self.ledger, self.ledger.results(name), self.plan.out, SECONDS)
            except ArchiveError as err:
                self.log(f"{name}: {err}; sent again in {wait:g} s")
                self.results.put(name)
                self.stop.wait(wait)
                wait = min(2 * wait, LONGEST_WAIT)
            except (CaseError, UserError) as err:
                self._fail(name, str(err))
            else:
                self.ledger.set_state(name, "pushed")
                self.log(f"{name}: results sent to {peer.title}")
                wait = FIRST_WAIT


@contextmanager
def _server(plan: Plan, receiver: Receiver, log: Callable[[str], None]) -> Iterator[None]:
    """The server, during the block."""
    entity, handlers = _entity(plan), _handlers(receiver, log)
    try:
        server = entity.make_server((plan.host, plan.port), evt_handlers=handlers, server_class=guarded_server(log))
    except OSError as err:
        raise UserError(f"--port {plan.port} on {plan.host} cannot be used ({err.strerror}); choose another") from None
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": POLL}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with suppress(ValueError):  # the entity did not start it, and so cannot forget it
            server.shutdown()
        entity.shutdown()


def _entity(plan: Plan) -> Any:
    try:
        from pynetdicom import AE, AllStoragePresentationContexts, _config
    except ImportError:
        raise UserError("reshift pacs needs: pip install 'reshift[pacs]'") from None
    from pydicom import uid

    logging.getLogger("pynetdicom").setLevel(logging.CRITICAL + 1)  # its log shows what instances hold
    silence_pydicom()
    _config.LOG_HANDLER_LEVEL = "none"
    entity = AE(plan.title)
    entity.maximum_pdu_size = MAX_PDU
    entity.acse_timeout = entity.dimse_timeout = SECONDS
    entity.network_timeout = 2 * SECONDS
    entity.require_called_aet = True
    entity.require_calling_aet = list(plan.allow)
    names = ("ExplicitVRLittleEndian", "ImplicitVRLittleEndian", "DeflatedExplicitVRLittleEndian", "RLELossless")
    jpegs = ("JPEGBaseline8Bit", "JPEGLossless", "JPEGLosslessSV1", "JPEGLSLossless", "JPEGLSNearLossless")
    syntaxes = [getattr(uid, name) for name in (*names, *jpegs, "JPEG2000Lossless", "JPEG2000")]
    for context in AllStoragePresentationContexts:
        kind = uid.UID(str(context.abstract_syntax))
        if "Image Storage" in kind.name:
            entity.add_supported_context(kind, syntaxes)
    entity.add_supported_context("1.2.840.10008.1.1")  # C-ECHO
    return entity


def _handlers(receiver: Receiver, log: Callable[[str], None]) -> list[Any]:
    from pynetdicom import evt

    def rejected(event: Any) -> None:
        log(f"refused: an association from '{_printable(event.assoc.requestor.ae_title)}' at {event.assoc.requestor.address}")

    def accepted(event: Any) -> None:
        if refused := len(event.assoc.rejected_contexts):
            title = _printable(event.assoc.requestor.ae_title)
            log(f"refused: {refused} kinds of objects or transfer syntaxes that '{title}' proposed")

    def echo(_event: Any) -> int:
        return SUCCESS

    return [
        (evt.EVT_C_ECHO, echo),
        (evt.EVT_C_STORE, receiver.store),
        (evt.EVT_CONN_CLOSE, receiver.ended),
        (evt.EVT_REJECTED, rejected),
        (evt.EVT_ACCEPTED, accepted),
    ]


def _printable(title: str) -> str:
    return "".join(letter if letter.isalnum() or letter in " ._-" else "?" for letter in title.strip())[:16]
