"""Commands about data: ``prepare``, ``datasets`` and ``check``. Like ``cli``, it imports what a command needs when it runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from reshift.datasets import DATASETS
from reshift.errors import UserError

FAILED_CASES = 3
SHOWN = 5  # lines about skipped cases; dataset.json has them all


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(prepare)
    app.command()(datasets)
    app.command()(check)


def prepare(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="see 'reshift datasets'")],
    source: Annotated[Path, typer.Option("--source", help="folder that the dataset was unpacked into")],
    out: Annotated[Path, typer.Option("--out", help="output folder; a re-run continues there")],
    seed: Annotated[int, typer.Option(min=0, help="decides the splits")] = 0,
    size: Annotated[int, typer.Option(min=32, max=1024, help="side of the pictures in pixels")] = 128,
    protocol: Annotated[str | None, typer.Option(help="which slices and splits; see docs/datasets.md")] = None,
    fit: Annotated[str, typer.Option(help="pictures that are not square: crop (the paper) or pad; volumes are padded")] = "crop",
) -> None:
    """A public dataset as downloaded → images, masks, manifest.csv and dataset.json, by the rules in docs/datasets.md."""
    from reshift.datasets import get

    plan = get(dataset)
    known = DATASETS[dataset].protocols
    protocol = protocol or known[0]
    for value, choices, name in ((protocol, known, "--protocol"), (fit, ("crop", "pad"), "--fit")):
        if value not in choices:
            raise UserError(f"{name} {value}: choose {' or '.join(choices)}")
    from reshift.datasets.build import Settings, build

    summary = build(plan, source, out, Settings(dataset, seed, size, protocol, fit))
    typer.echo(f"layout: {summary.layout}")
    for split, n in summary.counts.items():
        typer.echo(f"{split}: {n['normal']} normal, {n['abnormal']} abnormal, {n['subjects']} subjects")
    for why, count in summary.left_out.items():
        typer.echo(f"left out by rule: {count} × {why}")
    typer.echo(f"manifest: {summary.manifest}")
    for line in summary.notes:
        typer.echo(f"warning: {line}", err=True)
    if summary.skipped:
        for line in summary.skipped[:SHOWN]:
            typer.echo(f"skipped: {line}", err=True)
        typer.echo(f"warning: {len(summary.skipped)} cases could not be used; dataset.json lists them", err=True)
        raise typer.Exit(FAILED_CASES)


def datasets(as_json: Annotated[bool, typer.Option("--json", help="machine-readable output")] = False) -> None:
    """List the public datasets that 'prepare' knows: what, where from, by whom, licence, size."""
    if as_json:
        entries = {name: {k: v for k, v in e._asdict().items() if k != "location"} for name, e in DATASETS.items()}
        typer.echo(json.dumps(entries, indent=1, ensure_ascii=False))
        return
    for name, entry in DATASETS.items():
        typer.echo(f"{name:11} {entry.title}: {entry.what}")
        for label, text in (("from", entry.download), ("by", entry.publisher), ("licence", entry.licence), ("size", entry.size)):
            typer.echo(f"{'':11} {label + ':':9} {text}")


def check(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="folder, zipped folder, manifest.csv or data.json")],
    out: Annotated[Path | None, typer.Option("--out", help="folder for check.html (contact sheet) and check.json")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable output")] = False,
) -> None:
    """Look at every image before training: what there is, what is wrong with it, what is worth a look."""
    from reshift.data.archive import opened
    from reshift.reports.check import check as look
    from reshift.reports.check_page import page, summary, text
    from reshift.system.files import atomic_json, atomic_text, writable_folder

    if out is not None:
        writable_folder(out)
    with opened(data) as folder:
        health = look(folder, name=str(data))
        if out is not None:
            atomic_text(out / "check.html", page(health))
            atomic_json(out / "check.json", summary(health))
    typer.echo(json.dumps(summary(health), indent=1) if as_json else text(health))
    if out is not None and not as_json:
        typer.echo(f"contact sheet: {out / 'check.html'}")
    if not health.healthy:
        raise typer.Exit(FAILED_CASES)
