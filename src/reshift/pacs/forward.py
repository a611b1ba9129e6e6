"""Send results on (C-STORE): each once, and again after a back-off while the receiver does not answer."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reshift.errors import UserError
from reshift.pacs.archive import ArchiveError, CaseError
from reshift.pacs.ledger import Ledger, Result

_TITLE = re.compile(r"[!-\[\]-~][ -\[\]-~]{0,15}")  # printable ASCII without backslash
DUPLICATE = 0x0111
WARNINGS = range(0xB000, 0xC000)


class Peer(NamedTuple):
    """Who receives results."""

    title: str
    host: str
    port: int


def checked_title(text: str) -> str:
    """An AE title."""
    if not _TITLE.fullmatch(text) or text != text.strip():
        raise UserError(f"'{text}' is not an AE title; it has 1 to 16 characters, without backslash")
    return text


def parse_peer(text: str) -> Peer:
    """``AET@host:port``."""
    title, at, address = text.partition("@")
    host, colon, port = address.rpartition(":")
    if not (at and colon and host and port.isdigit() and 0 < int(port) < 2**16):
        raise UserError(f"--forward '{text}' is not AET@host:port; e.g. ORTHANC@127.0.0.1:4242")
    return Peer(checked_title(title), host.strip("[]"), int(port))


def forward_results(peer: Peer, title: str, ledger: Ledger, results: Sequence[Result], out: Path, timeout: float) -> None:
    """Send what the ledger does not know to be stored; a receiver that is away raises ``ArchiveError``."""
    left = [result for result in results if not result.stored]
    if not left:
        return
    association = _associate(peer, title, timeout)
    try:
        for result in left:
            _send(association, ledger, result, out)
    finally:
        if association.is_established:
            association.release()


def _associate(peer: Peer, title: str, timeout: float) -> Any:
    from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian
    from pynetdicom import AE
    from pynetdicom.presentation import build_context

    entity = AE(title)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = entity.connection_timeout = timeout
    syntaxes: list[Any] = [ExplicitVRLittleEndian, ImplicitVRLittleEndian]
    association = entity.associate(
        peer.host, peer.port, [build_context(kind, syntaxes) for kind in _result_classes()], ae_title=peer.title
    )
    if association.is_rejected:
        raise CaseError(f"{peer.title} refuses an association with us; tell it about the AE title {title}")
    if not association.is_established:
        raise ArchiveError(f"{peer.title} does not answer")
    return association


def _result_classes() -> list[str]:
    """What results can be: segmentation, parametric map, secondary captures and structured reports."""
    from pydicom import uid

    names = (
        *("SegmentationStorage", "ParametricMapStorage", "SecondaryCaptureImageStorage"),
        *("MultiFrameTrueColorSecondaryCaptureImageStorage", "MultiFrameGrayscaleByteSecondaryCaptureImageStorage"),
        *("BasicTextSRStorage", "EnhancedSRStorage", "ComprehensiveSRStorage", "Comprehensive3DSRStorage"),
    )
    return [str(getattr(uid, name)) for name in names]


def _send(association: Any, ledger: Ledger, result: Result, out: Path) -> None:
    try:
        answer = association.send_c_store(out / result.path)
    except ValueError:
        raise CaseError("the receiver does not take this kind of result; see its list of SOP classes") from None
    except (RuntimeError, OSError):
        raise ArchiveError("the receiver went away") from None
    status = answer.get("Status")
    if status is None:  # the connection broke, or nothing came in time
        raise ArchiveError("the receiver went away")
    if status not in (0x0000, DUPLICATE) and status not in WARNINGS:
        raise CaseError(f"the receiver refused a result (status 0x{status:04X})")
    ledger.stored([result.sop])
