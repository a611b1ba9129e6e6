"""``reshift score``."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from reshift.cli.shared import FAILED_CASES, BundlePath, Device, unpack, warn
from reshift.errors import UserError
from reshift.system.imports import heavy_imports

Inputs = Annotated[
    list[Path], typer.Argument(metavar="INPUT...", help="images, volumes, DICOM series, folders, zip files, manifests")
]
DicomOut = Annotated[
    bool, typer.Option("--dicom-out", help="also write dicom/: segmentation, parametric map and overlays (extra: dicom)")
]
Overlays = Annotated[str, typer.Option(metavar="all|flagged|none", help="which images get an overlay of their heat-map")]
EngineName = Annotated[
    str, typer.Option(metavar="local|ray", help="local: this process; ray: RAY_ADDRESS, or this machine (extra: ray)")
]
Workers = Annotated[int | None, typer.Option(min=1, help="with ray: number of workers; default: one per GPU, or per core")]


def score(
    bundle: BundlePath,
    inputs: Inputs,
    out: Annotated[Path, typer.Option("--out", help="output folder; a second run continues there")],
    dicom_out: DicomOut = False,
    overlays: Overlays = "all",
    device: Device = "auto",
    engine: EngineName = "local",
    workers: Workers = None,
) -> None:
    """Score images and volumes. Writes scores.jsonl, maps/ (heat-maps on the input's own grid) and overlays/.

    A case that fails is recorded and does not stop the others; the exit code is then 3.
    """
    with heavy_imports():
        from reshift.inference.model import load_model
        from reshift.inference.score import score as run

    on_ray = _ray_engine(bundle, inputs, engine, workers, device)
    model = load_model(bundle, "cpu" if on_ray else device)  # with Ray the workers load their own
    if model.bundle.calibration is None:
        warn([f"{bundle} has no calibration.json: no p-values, flags or overlays; run 'reshift calibrate'"])
    else:
        warn(model.bundle.calibration.warnings() + model.warnings())
    summary = run(model, [unpack(path) for path in inputs], out, dicom=dicom_out, overlays=overlays, engine=on_ray)
    typer.echo(f"{summary.cases} cases, {summary.failures} failed: {out / 'scores.jsonl'}")
    warn(summary.notes + ([summary.warning] if summary.warning else []))
    if summary.failures:
        raise typer.Exit(FAILED_CASES)


def _ray_engine(bundle: Path, inputs: list[Path], name: str, workers: int | None, device: str) -> Any:
    """The engine that scores on Ray, or None for this process."""
    if name == "local":
        if workers is not None:
            raise UserError("--workers needs --engine ray; one process uses all cores, or one GPU")
        return None
    if name != "ray":
        raise UserError(f"engine '{name}' is not known; use local or ray")
    from reshift.inference.score_ray import Engine

    zipped = next((path for path in inputs if path.suffix.lower() == ".zip"), None)
    if zipped and os.environ.get("RAY_ADDRESS", "local") != "local":
        raise UserError(f"{zipped}: is unpacked on this machine alone; unpack it to a folder that all nodes of the cluster share")
    return Engine(bundle, workers, device)
