"""``reshift score``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reshift.cli.runtime import Runtime, check_runtime, chooser
from reshift.cli.shared import FAILED_CASES, BundlePath, Device, DicomKinds, unpack, warn
from reshift.errors import UserError
from reshift.system.imports import heavy_imports

if TYPE_CHECKING:
    from reshift.inference.model import Model

Inputs = Annotated[
    list[Path], typer.Argument(metavar="INPUT...", help="images, volumes, DICOM series, folders, zip files, manifests")
]
DicomOut = Annotated[
    bool,
    typer.Option(
        "--dicom-out", help="also write dicom/: segmentation, parametric map, findings (SR) and overlays (extra: dicom)"
    ),
]
MinDiameter = Annotated[
    float,
    typer.Option(
        "--min-diameter", metavar="MM", min=0.0, help="findings are regions of at least this longest diameter, in millimetres"
    ),
]
Preview = Annotated[
    bool, typer.Option("--preview", help="also write previews/: one picture per case, its three most suspicious slices")
]
Anonymise = Annotated[
    Path | None,
    typer.Option(
        "--anonymise",
        metavar="KEYFILE",
        help="with --dicom-out: DICOM without patient data; KEYFILE, outside --out, keeps who is who",
    ),
]
Overlays = Annotated[str, typer.Option(metavar="all|flagged|none", help="which images get an overlay of their heat-map")]
Labels = Annotated[bool, typer.Option("--labels", help="write score, p-value and a colour bar into the overlays")]
EngineName = Annotated[
    str, typer.Option(metavar="local|ray", help="local: this process; ray: RAY_ADDRESS, or this machine (extra: ray)")
]
Workers = Annotated[int | None, typer.Option(min=1, help="with ray: number of workers; default: one per GPU, or per core")]


def score(
    bundle: BundlePath,
    inputs: Inputs,
    out: Annotated[Path, typer.Option("--out", help="output folder; a second run continues there")],
    dicom_out: DicomOut = False,
    dicom_kinds: DicomKinds = "mask,report,map,overlay",
    anonymise: Anonymise = None,
    min_diameter: MinDiameter = 3.0,
    preview: Preview = False,
    overlays: Overlays = "all",
    labels: Labels = False,
    device: Device = "auto",
    runtime: Runtime = "auto",
    engine: EngineName = "local",
    workers: Workers = None,
) -> None:
    """Score images and volumes. Writes scores.jsonl, findings.json, findings.csv, maps/ and overlays/.

    Heat-maps (maps/) lie on the input's own grid; findings are measured in millimetres there.

    A case that fails is recorded and does not stop the others; the exit code is then 3.
    """
    with heavy_imports():
        from reshift.inference.model import load_model
        from reshift.inference.outputs import Outputs, parse_kinds
        from reshift.inference.score import score as run

    check_runtime(runtime, bundle, engine)
    _check_key(anonymise, out, dicom_out=dicom_out, engine=engine)
    on_ray = _ray_engine(bundle, inputs, engine, workers, device)
    outputs = Outputs(min_diameter, preview, anonymise, labels, kinds=parse_kinds(dicom_kinds))
    model = load_model(bundle, "cpu" if on_ray else device)  # with Ray the workers load their own
    _warn_of(model, bundle)
    given = [unpack(path) for path in inputs]
    choose = None if on_ray else chooser(model, bundle, runtime)
    summary = run(model, given, out, dicom=dicom_out, overlays=overlays, outputs=outputs, engine=on_ray, choose=choose)
    typer.echo(f"{summary.cases} cases, {summary.failures} failed: {out / 'scores.jsonl'}")
    warn(summary.notes + ([summary.warning] if summary.warning else []))
    if summary.failures:
        raise typer.Exit(FAILED_CASES)


def _warn_of(model: "Model", bundle: Path) -> None:
    if model.bundle.calibration is None:
        warn([f"{bundle} has no calibration.json: no p-values, flags or overlays; run 'reshift calibrate'"])
    else:
        warn(model.bundle.calibration.warnings() + model.warnings())


def _check_key(key: Path | None, out: Path, *, dicom_out: bool, engine: str) -> None:
    """A key that lies among the results would be handed on with them."""
    if key is None:
        return
    if not dicom_out:
        raise UserError("--anonymise is about DICOM results; add --dicom-out")
    if engine != "local":
        raise UserError("--anonymise needs --engine local: one process keeps the key file")
    if out.resolve() in (key.resolve(), *key.resolve().parents):
        raise UserError(f"{key}: lies in --out, so it would be handed on with the results; keep the key file elsewhere")


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
