"""``reshift bench``."""

from pathlib import Path
from typing import Annotated

import typer

from reshift.cli.shared import Device, warn


def bench(
    suite: Annotated[Path, typer.Argument(metavar="SUITE.toml", help="methods × data sets × seeds; examples in suites/")],
    out: Annotated[Path, typer.Option("--out", help="folder of cells, models and tables; a second run does what is missing")],
    data: Annotated[Path | None, typer.Option("--data", help="folder that the suite's manifests are relative to")] = None,
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="where cells run: this machine, or Ray (extra: ray)")
    ] = "local",
    workers: Annotated[int, typer.Option(min=0, help="number of worker processes; 0: one per GPU, or one on the CPU")] = 0,
    device: Device = "auto",
    only: Annotated[str | None, typer.Option(metavar="GLOB", help="run only cells whose name matches, e.g. 'busi-dmd*'")] = None,
    keep_maps: Annotated[
        int, typer.Option(min=0, metavar="N", help="keep the heat-maps of N abnormal images of each cell, and draw them")
    ] = 0,
    track: Annotated[
        list[str] | None, typer.Option(metavar="tensorboard|mlflow", help="also log every cell there; repeatable")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the cells and their expected cost; run nothing")] = False,
    tables_only: Annotated[bool, typer.Option("--tables-only", help="make tables from finished cells; run nothing")] = False,
    all_: Annotated[bool, typer.Option("--all", help="in the tables, include finished cells that are not in the suite")] = False,
) -> None:
    """Run a benchmark suite: one result file per cell, then the paper's tables and figures."""
    from reshift.bench import run

    options = run.Options(suite, out, data, engine, workers, device, only, all_, tuple(track or ()), keep_maps)
    work = run.dry_run if dry_run else run.tables_only if tables_only else run.bench
    code = work(options, typer.echo, lambda line: warn([line]))
    if code == run.DONE and work is run.bench:
        typer.echo(f"tables: {out / 'tables.md'}")
    raise typer.Exit(code)
