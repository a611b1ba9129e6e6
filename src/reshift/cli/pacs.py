"""``reshift pacs``."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reshift.cli.runtime import Runtime, check_runtime, on_runtime
from reshift.cli.shared import FAILED_CASES, BundlePath, Device, DicomKinds, warn
from reshift.errors import UserError
from reshift.system.imports import heavy_imports

if TYPE_CHECKING:
    from reshift.inference.model import Model
    from reshift.pacs.archive import Options
    from reshift.pacs.query import Filters

pacs = typer.Typer(
    name="pacs", help="Score the studies of an archive, or what a scanner sends, and send results back.", no_args_is_help=True
)
SHOWN = 20  # failed cases; series.csv has all of them

DicomWeb = Annotated[str, typer.Option("--dicomweb", metavar="URL", help="the archive's DICOMweb address")]
StudyUids = Annotated[list[str] | None, typer.Option("--study", metavar="UID", help="only this study; may be repeated")]
Query = Annotated[str | None, typer.Option("--query", metavar="FILTER", help='e.g. "Modality=MR,StudyDate=20260101-"')]
NewSince = Annotated[
    str | None, typer.Option("--new-since", metavar="WHEN", help="studies since a date, 12h, 3d or 2w ago, or 'last' run")
]
PacsOut = Annotated[Path, typer.Option("--out", help="output folder with the ledger; a second run continues there")]
MaxStudies = Annotated[int | None, typer.Option("--max-studies", min=1, help="stop after this many studies with work to do")]
Netrc = Annotated[Path | None, typer.Option("--netrc", help="file with user and password (mode 600); default: environment")]
Ca = Annotated[Path | None, typer.Option("--ca", help="certificates (PEM) of the authority that signed the archive's")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="seconds to wait for an answer")]
Retries = Annotated[int, typer.Option("--retries", min=0, help="how often a request is repeated, with growing waits")]
SpoolGb = Annotated[float, typer.Option("--spool-gb", min=0.001, help="GB of scans that may wait on disk for the model")]
Overlays = Annotated[str, typer.Option(metavar="all|flagged|none", help="which series get a PNG of their heat-map in --out")]


@pacs.command("score")
def score(
    bundle: BundlePath,
    dicomweb: DicomWeb,
    out: PacsOut,
    study: StudyUids = None,
    query: Query = None,
    new_since: NewSince = None,
    push: Annotated[bool, typer.Option("--push", help="store the results in the archive, in the studies they belong to")] = False,
    max_studies: MaxStudies = None,
    netrc: Netrc = None,
    ca: Ca = None,
    timeout: Timeout = 30.0,
    retries: Retries = 5,
    spool_gb: SpoolGb = 4.0,
    overlays: Overlays = "flagged",
    dicom_kinds: DicomKinds = "mask,report,map,overlay",
    device: Device = "auto",
    runtime: Runtime = "auto",
) -> None:
    """Fetch studies from a DICOMweb archive, score every series of images and, with --push, store the results there.

    Credentials come from RESHIFT_PACS_USER and RESHIFT_PACS_PASSWORD, from RESHIFT_PACS_TOKEN, or from --netrc.
    A series that fails is recorded and tried again by the next run; the exit code is then 3.
    """
    from reshift.inference.outputs import parse_kinds
    from reshift.pacs.run import Plan, score_archive

    options = _connection(dicomweb, netrc, ca, timeout, retries)
    filters, kinds = _filters(study, query, new_since), parse_kinds(dicom_kinds)
    plan = Plan(options, out, filters, new_since, push, max_studies, int(spool_gb * 10**9), overlays, kinds)
    summary = score_archive(_load(bundle, device, runtime), plan)
    typer.echo(
        f"{summary.series} series, {summary.scored} scored, {len(summary.failed)} failed, "
        f"{summary.stored} results stored: {summary.table}"
    )
    warn(summary.notes + _shown(summary.failed))
    if summary.failed:
        raise typer.Exit(FAILED_CASES)


@pacs.command("listen")
def listen(
    bundle: BundlePath,
    aet: Annotated[str, typer.Option("--aet", metavar="AET", help="our AE title")],
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="port to listen on")],
    out: PacsOut,
    host: Annotated[str, typer.Option("--host", help="address to listen on; others than loopback need --allow")] = "127.0.0.1",
    allow: Annotated[list[str] | None, typer.Option("--allow", metavar="AET", help="who may send; may be repeated")] = None,
    forward: Annotated[str | None, typer.Option("--forward", metavar="AET@HOST:PORT", help="who gets the results")] = None,
    quiet: Annotated[float, typer.Option("--quiet", min=0.0, help="seconds without an instance that end a series")] = 5.0,
    spool_gb: SpoolGb = 4.0,
    overlays: Overlays = "flagged",
    dicom_kinds: DicomKinds = "mask,report,map,overlay",
    device: Device = "auto",
    runtime: Runtime = "auto",
) -> None:
    """Receive images by C-STORE, score a series once it is complete, and send the results to --forward. Ctrl-C ends it.

    A series is complete when its sender has closed the association and nothing of it came for --quiet seconds.
    """
    from reshift.inference.outputs import parse_kinds
    from reshift.pacs.forward import checked_title, parse_peer
    from reshift.pacs.listen import Plan
    from reshift.pacs.listen import listen as run

    peer = parse_peer(forward) if forward else None
    titles = [checked_title(title) for title in allow or ()]
    kinds = parse_kinds(dicom_kinds)
    plan = Plan(checked_title(aet), port, out, host, titles, peer, quiet, int(spool_gb * 10**9), overlays, kinds)
    summary = run(_load(bundle, device, runtime), plan, _log)
    typer.echo(f"{summary.scored} series scored, {summary.failed} failed: {summary.table}")
    if summary.failed:
        raise typer.Exit(FAILED_CASES)


def _log(line: str) -> None:
    typer.echo(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}", err=True)


def _connection(dicomweb: str, netrc: Path | None, ca: Path | None, timeout: float, retries: int) -> "Options":
    from reshift.pacs.archive import Options
    from reshift.pacs.credentials import checked_url, find_credentials, unencrypted

    url = checked_url(dicomweb)
    options = Options(url, find_credentials(url, netrc), ca, timeout, retries)
    if unencrypted(url, options.credentials):
        warn([f"{url}: the password travels unencrypted; use https"])
    return options


def _filters(study: list[str] | None, query: str | None, new_since: str | None) -> "Filters":
    from reshift.pacs.query import Filters, parse_query
    from reshift.pacs.uids import checked_uid

    if study and (query or new_since):
        raise UserError("--study names the studies; leave out --query and --new-since")
    if study:
        return Filters(tuple(checked_uid(uid) for uid in study))
    return parse_query(query) if query else Filters()


def _shown(failed: list[str]) -> list[str]:
    more = len(failed) - SHOWN
    return failed[:SHOWN] + ([f"… and {more} more"] if more > 0 else [])


def _load(bundle: Path, device: str, runtime: str) -> "Model":
    """The model on its runtime. An archive or a scanner sends the same model images day after day: a conversion always pays."""
    with heavy_imports():
        from reshift.inference.model import load_model
        from reshift.pacs.scoring import check_model

    check_runtime(runtime, bundle)
    model = load_model(bundle, device)
    check_model(model)  # before a conversion that would be for nothing
    model = on_runtime(model, bundle, runtime)
    warn((model.bundle.calibration.warnings() if model.bundle.calibration else []) + model.warnings())
    return model
