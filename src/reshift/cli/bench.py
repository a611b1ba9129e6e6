"""The command ``bench``. Like ``cli``, it imports what it needs when it runs."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(bench)


def bench(
    suite: Annotated[Path, typer.Argument(metavar="SUITE.toml", help="methods × data sets × seeds; examples in suites/")],
    out: Annotated[Path, typer.Option("--out", help="folder of cells, models and tables; a re-run does what is missing there")],
    data: Annotated[Path | None, typer.Option("--data", help="folder that the suite's manifests are relative to")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray (extra: ray)")] = "local",
    workers: Annotated[int, typer.Option(min=0, help="processes; 0: one per GPU, or one on the CPU")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, …")] = "auto",
    only: Annotated[str | None, typer.Option(metavar="GLOB", help="run only cells of such names, e.g. 'busi-dmd*'")] = None,
    track: Annotated[list[str] | None, typer.Option(help="log every cell to tensorboard or mlflow, too; repeatable")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the cells and what they will cost, run none")] = False,
    tables_only: Annotated[bool, typer.Option("--tables-only", help="make the tables of what is finished, run nothing")] = False,
    all_: Annotated[bool, typer.Option("--all", help="tables also of finished cells that the suite does not have")] = False,
) -> None:
    """Run a benchmark suite: every result one small file, tables and figures of the paper made of them."""
    from reshift.bench import run

    options = run.Options(suite, out, data, engine, workers, device, only, all_, tuple(track or ()))
    work = run.dry_run if dry_run else run.tables_only if tables_only else run.bench
    code = work(options, typer.echo, lambda line: typer.echo(f"warning: {line}", err=True))
    if code == run.DONE and work is run.bench:
        typer.echo(f"tables: {out / 'tables.md'}")
    raise typer.Exit(code)
