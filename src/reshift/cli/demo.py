"""``reshift demo``: all steps on phantom images, in minutes on two CPU cores."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from reshift.cli.shared import Out, Seed, print_metrics
from reshift.system.imports import heavy_imports
from reshift.system.lock import output_folder


def demo(
    out: Out = Path("runs/demo"),
    kind: Annotated[str, typer.Option(metavar="brain|ultrasound|chest", help="the kind of phantom images")] = "brain",
    seed: Seed = 0,
) -> None:
    """Run every step on phantom images, in minutes on two CPU cores: train, calibrate, score, evaluate, report."""
    with output_folder(out):
        metrics = run_demo(out, kind, seed)
    print_metrics(metrics)
    typer.echo(f"report: {out / 'report.html'}")


def run_demo(out: Path, kind: str = "brain", seed: int = 0, layers: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Draw phantom data, train, score and evaluate; write ``out/report.html`` and return the metrics.

    An interrupted demo continues. A finished one is repeated with its own model.
    """
    with heavy_imports():
        from reshift.data.manifest import load_cases
        from reshift.data.phantom import write_phantom
        from reshift.inference.model import load_model
        from reshift.inference.score import score
        from reshift.reports.report import evaluate_with_report
        from reshift.system.files import atomic_bytes, create_output_folder
        from reshift.training.run import resolve, train_run

    create_output_folder(out)
    data = out / "data" / kind
    manifest = data / "manifest.csv"
    if not manifest.exists():
        shutil.rmtree(data, ignore_errors=True)  # an interrupted run may have left half of it
        manifest = write_phantom(data, kind, seed=seed)
    config = resolve(None, "quick", [*layers, {"seed": seed}])
    model = load_model(train_run(config, manifest, out / f"run-{kind}-{seed}", resume=True))
    score(model, [manifest], out / f"scores-{kind}-{seed}")
    tests = [case for case in load_cases(manifest) if case.split == "test"]
    metrics, _ = evaluate_with_report(model, tests, out / f"evaluation-{kind}-{seed}", f"phantom-{kind}")
    atomic_bytes(out / "report.html", (out / f"evaluation-{kind}-{seed}" / "report.html").read_bytes())
    return metrics
