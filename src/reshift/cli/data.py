"""Commands about data: ``check``, ``prepare`` and ``datasets``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reshift.cli.shared import FAILED_CASES, AsJson, cleanup, unpack, warn
from reshift.datasets import DATASETS
from reshift.errors import UserError

if TYPE_CHECKING:
    from reshift.datasets.build import Summary

MAX_SHOWN = 5  # lines about skipped cases; dataset.json has them all


def check(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="folder, zip of a folder, manifest.csv or data.json")],
    out: Annotated[Path | None, typer.Option("--out", help="folder for check.html (contact sheet) and check.json")] = None,
    as_json: AsJson = False,
) -> None:
    """Check every image before training: damaged files, leaks, duplicates, burned-in text, unusual images."""
    from reshift.reports.check import check as run
    from reshift.reports.check_page import page, summary, text
    from reshift.system.files import atomic_json, atomic_text
    from reshift.system.lock import output_folder

    if out is not None:
        cleanup.enter_context(output_folder(out))
    health = run(unpack(data), name=str(data))
    if out is not None:
        atomic_text(out / "check.html", page(health))
        atomic_json(out / "check.json", summary(health))
    typer.echo(json.dumps(summary(health), indent=1) if as_json else text(health))
    if out is not None and not as_json:
        typer.echo(f"contact sheet: {out / 'check.html'}")
    if not health.healthy:
        raise typer.Exit(FAILED_CASES)


def prepare(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="a name of 'reshift datasets'")],
    source: Annotated[Path, typer.Option("--source", help="the download: a folder, or an archive (.zip, .tar, .tar.gz)")],
    out: Annotated[Path, typer.Option("--out", help="output folder; a second run continues there")],
    seed: Annotated[int, typer.Option(min=0, help="seed of the random splits")] = 0,
    size: Annotated[int, typer.Option(min=32, max=1024, help="side of the images in pixels")] = 128,
    protocol: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="which slices and splits; see docs/datasets.md; default: the data set's first"),
    ] = None,
    fit: Annotated[
        str, typer.Option(metavar="crop|pad", help="how images that are not square become square; slices are always padded")
    ] = "crop",
    brain_masks: Annotated[
        Path | None,
        typer.Option("--brain-masks", help="folder of brain masks by HD-BET or SynthStrip, to remove the skull (wmh)"),
    ] = None,
) -> None:
    """Convert a public data set as downloaded to images, masks, manifest.csv and dataset.json.

    docs/datasets.md has the rules of each data set.
    """
    from reshift.datasets import get

    plan = get(dataset)
    known = DATASETS[dataset].protocols
    protocol = protocol or known[0]
    for value, choices, name in ((protocol, known, "--protocol"), (fit, ("crop", "pad"), "--fit")):
        if value not in choices:
            raise UserError(f"{name} {value}: choose {' or '.join(choices)}")
    if brain_masks is not None and dataset != "wmh":
        raise UserError(f"--brain-masks is for wmh, not for {dataset}")
    from reshift.datasets.build import build
    from reshift.datasets.plan import Settings

    _print_summary(build(plan, source, out, Settings(dataset, seed, size, protocol, fit, brain_masks)))


def _print_summary(summary: "Summary") -> None:
    typer.echo(f"layout: {summary.layout}")
    for split, n in summary.counts.items():
        typer.echo(f"{split}: {n['normal']} normal, {n['abnormal']} abnormal, {n['subjects']} subjects")
    for why, count in summary.left_out.items():
        typer.echo(f"left out by rule: {count} × {why}")
    found = summary.cases
    parts = f"{found['prepared']} prepared, {found['left_out']} left out by rules, {found['refused']} refused"
    typer.echo(f"cases: {found['found']} found = {parts}")
    typer.echo(f"manifest: {summary.manifest}")
    warn(summary.notes)
    if summary.skipped:
        for line in summary.skipped[:MAX_SHOWN]:
            typer.echo(f"skipped: {line}", err=True)
        warn([f"{len(summary.skipped)} cases could not be used; dataset.json lists them"])
        raise typer.Exit(FAILED_CASES)


def datasets(as_json: AsJson = False) -> None:
    """List the public data sets that 'prepare' knows, with their source, publisher, licence and size."""
    if as_json:
        entries = {name: {k: v for k, v in e._asdict().items() if k != "location"} for name, e in DATASETS.items()}
        typer.echo(json.dumps(entries, indent=1, ensure_ascii=False))
        return
    for name, entry in DATASETS.items():
        typer.echo(f"{name:11} {entry.title}: {entry.what}")
        for label, text in (("from", entry.download), ("by", entry.publisher), ("licence", entry.licence), ("size", entry.size)):
            typer.echo(f"{'':11} {label + ':':9} {text}")
