"""Commands about how good a model is: ``evaluate``, ``compare``, ``figures`` and ``select``."""

from pathlib import Path
from typing import Annotated

import typer

from reshift.cli.shared import FAILED_CASES, BundlePath, Data, Device, Out, Seed, print_metrics, unpack, warn
from reshift.errors import UserError
from reshift.system.imports import heavy_imports
from reshift.system.lock import output_folder


def evaluate(
    bundle: BundlePath,
    data: Data,
    out: Out,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="held-out|training",
            help="the normals that set the thresholds; training is the paper's rule; default: held-out",
        ),
    ] = None,
    normative: Annotated[
        bool, typer.Option("--normative", help="also measure the restored images: RQI, AHI, CACI (extra: features)")
    ] = False,
    device: Device = "auto",
) -> None:
    """Evaluate a bundle on the test split of a manifest. Writes metrics.json and report.html."""
    with heavy_imports():
        from reshift.data.manifest import data_caveat, load_cases
        from reshift.evaluation.evaluate import normative_indices
        from reshift.inference.model import load_model
        from reshift.reports.report import evaluate_with_report as run

    data = unpack(data)
    cases = load_cases(data)
    tests = [case for case in cases if case.split == "test"]
    if not tests:
        raise UserError(f"{data}: has no test images; evaluating needs a manifest with labelled rows in split 'test'")
    if not any(case.label for case in tests):
        warn([f"{data}: has no abnormal test images (label 1); most metrics will be empty"])
    name = (data if data.is_dir() else data.parent).resolve().name
    model = load_model(bundle, device, reference)
    indices = normative_indices(model, [case for case in cases if case.split == "train"]) if normative else None
    with output_folder(out):
        metrics, errors = run(model, tests, out, name, indices, data_caveat=data_caveat(data))
    print_metrics(metrics)
    typer.echo(f"report: {out / 'report.html'}")
    warn(metrics["warnings"] + errors)
    if errors:
        raise typer.Exit(FAILED_CASES)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="EVALUATION...", help="two or more output folders of 'evaluate'")],
    out: Out,
) -> None:
    """Compare methods on the same test images: intervals, paired tests and heat-maps side by side.

    Writes compare.html, compare.md and compare.json.
    """
    from reshift.reports.comparison import markdown, write_comparison

    table = write_comparison(runs, out)
    typer.echo(markdown(table))
    typer.echo(f"page: {out / 'compare.html'}")


def figures(
    runs: Annotated[list[Path], typer.Argument(metavar="EVALUATION...", help="one or more output folders of 'evaluate'")],
    out: Out,
) -> None:
    """Draw the paper's figures from saved evaluations, as PDF and PNG (extra: report)."""
    from reshift.evaluation.results import load_results
    from reshift.reports.figures.paper import all_figures
    from reshift.reports.figures.style import style

    results = [load_results(folder) for folder in runs]
    with style(), output_folder(out):  # a missing matplotlib shows before the folder is made
        for path in all_figures(results, out):
            typer.echo(str(path))


def select(
    configs: Annotated[list[Path], typer.Argument(metavar="CONFIG.toml...", help="the candidates; each is named by its file")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="folder of the runs and the ranking; a second run continues there")],
    profile: Annotated[str, typer.Option(metavar="paper|quick", help="the settings that the configs change")] = "paper",
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Rank configurations without labels, by how well they find synthetic anomalies in held-out normals.

    No test image and no label is read.
    """
    from reshift.config import read_toml
    from reshift.evaluation.select import Candidate, table
    from reshift.evaluation.select import select as run
    from reshift.training.run import resolve

    holdout = {"data": {"holdout": 0.2}}  # whatever the method's own profile holds out
    common = {"seed": seed, "train": {"device": device}}
    candidates = [Candidate(path.stem, resolve(None, profile, [holdout, read_toml(path), common])) for path in configs]
    data = unpack(data)
    with output_folder(out):
        ranking = run(candidates, data, out, seed=seed)
    typer.echo(table(ranking))
