"""``reshift push``, ``pull`` and ``schema``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from reshift.cli.shared import BundlePath
from reshift.errors import UserError
from reshift.system.imports import heavy_imports

Metrics = Annotated[Path | None, typer.Option(metavar="F", help="metrics.json of an evaluation of this bundle, for the card")]


def push(
    bundle: BundlePath,
    place: Annotated[str, typer.Argument(metavar="REPO", help="owner/name on the hub, or ./folder")],
    metrics: Metrics = None,
    licence: Annotated[str | None, typer.Option("--license", help="of the weights, for the card, such as cc-by-4.0")] = None,
    private: Annotated[bool, typer.Option("--private", help="make a new repository private")] = False,
) -> None:
    """Share a bundle: weights, settings, card and checksums, to the hub (extra: hub) or to a folder."""
    with heavy_imports():
        from reshift.exchange.places import parse_place
        from reshift.exchange.push import push as run

    run(bundle, parse_place(place), metrics, licence=licence, private=private)
    typer.echo(f"pushed: {place}")


def pull(
    place: Annotated[str, typer.Argument(metavar="REPO[@REV]", help="owner/name on the hub, https://…, or ./folder")],
    out: Annotated[Path | None, typer.Option("--out", help="new folder; default: the last part of the name")] = None,
) -> None:
    """Fetch a bundle that was pushed, and check every file. Nothing but safetensors, JSON and Markdown is taken."""
    with heavy_imports():
        from reshift.exchange.places import last_part, parse_place
        from reshift.exchange.pull import pull as run

    found = parse_place(place)
    typer.echo(f"bundle: {run(found, out or Path(last_part(found)))}")


def schema(name: Annotated[str | None, typer.Argument(metavar="NAME", help="none: list them")] = None) -> None:
    """Print the JSON Schema of a file: config, scores, metrics, manifest or calibration."""
    from reshift.exchange.schemas import SCHEMAS
    from reshift.exchange.schemas import schema as made

    if name is None:
        for known, function in SCHEMAS.items():
            typer.echo(f"{known:12} {function.__doc__}")
        return
    if name not in SCHEMAS:
        from reshift.config import nearest

        raise UserError(f"schema '{name}' is not known{nearest(name, SCHEMAS)}")
    typer.echo(json.dumps(made(name), indent=1))
