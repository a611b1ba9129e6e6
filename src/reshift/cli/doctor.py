"""``reshift doctor``: what is installed, what is missing, and the command for it."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from reshift.cli.shared import AsJson
from reshift.system.cache import size_text
from reshift.system.imports import heavy_imports

Determinism = Annotated[bool, typer.Option("--determinism", help="show what is equal to the bit when a run is repeated")]


def doctor(
    determinism: Determinism = False,
    as_json: AsJson = False,
) -> None:
    """Show versions, devices, extras, weights and cache; say what is missing and the command for it."""
    if determinism:
        show_determinism(as_json=as_json)
        return
    with heavy_imports():
        from reshift.system.health import health

        found = health()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    for line in lines(found):
        typer.echo(line)


def lines(found: dict[str, Any]) -> list[str]:
    """The facts as a table for a terminal."""
    device, cache = found["device"], found["cache"]
    gpus = ", ".join(f"{gpu['name']} ({gpu['memory_gb']:g} GB)" for gpu in device["gpus"])
    sizes = ", ".join(f"{kind} {size_text(size)}" for kind, size in cache["bytes"].items())
    built = f"CUDA {device['cuda_build']}" if device["cuda_build"] else "the CPU"
    rows = {
        "reshift": f"{found['reshift']}, Python {found['python']}, {found['platform']}",
        "packages": ", ".join(f"{name} {has or 'missing'}" for name, has in found["packages"].items()),
        "machine": f"{device['cores']} cores, {device['memory_gb']:g} GB of memory",
        "GPU": gpus or f"none that torch can use (torch for {built})",
        "cache": f"{cache['folder'] or 'off'}{f': {sizes}' if sizes else ''}",
        "weights": ", ".join(f"{name} {'yes' if has else 'no'}" for name, has in found["weights"].items()),
    }
    shown = [f"{name:10} {text}" for name, text in rows.items()]
    shown += [
        f"{'extras':10} "
        + ", ".join(f"{extra} {'yes' if all(names.values()) else 'no'}" for extra, names in found["extras"].items())
    ]
    shown += [""] + [f"- {advice['what']}: {advice['do']}" for advice in found["advice"]]
    return shown if found["advice"] else [*shown[:-1], "", "nothing is missing"]


def show_determinism(*, as_json: bool) -> None:
    """What is equal to the bit, and what only within a tolerance."""
    from reshift.system.determinism import determinism_table

    rows = determinism_table()
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table()
    for name in rows[0]:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)
