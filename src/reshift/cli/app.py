"""The command line. Imports what a command needs when it runs, so that ``reshift --help`` imports no torch."""

import os
import signal
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from reshift import __version__
from reshift.cli import bench as cli_bench
from reshift.cli import data as cli_data
from reshift.cli import info as cli_info
from reshift.errors import Stopped, UserError
from reshift.system.imports import heavy_imports

app = typer.Typer(
    name="reshift",
    help="Detect and localise disease in medical images after seeing healthy images only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
FAILED_CASES, INTERRUPTED = 3, 130
_open = ExitStack()  # what a command has unpacked; main puts it away
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer shows only this child of it

Data = Annotated[Path, typer.Option("--data", help="folder of normal images, manifest.csv, a known layout, or a zip of one")]
Out = Annotated[Path, typer.Option("--out", help="output folder, created if needed")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, …")]
AsJson = Annotated[bool, typer.Option("--json", help="machine-readable output")]
BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="bundle folder, e.g. RUN/bundle")]


@app.callback(invoke_without_command=True)
def _root(
    _debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,  # main looks for it
    version: Annotated[bool, typer.Option("--version", help="print the version and stop")] = False,
) -> None:
    if version:
        typer.echo(f"reshift {__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Out = Path("runs/demo"),
    kind: Annotated[str, typer.Option(help="brain, ultrasound or chest")] = "brain",
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Phantom data → train → calibrate → score → evaluate → report, in minutes on two CPU cores."""
    with heavy_imports():
        from reshift.cli.demo import demo as run

    _print_metrics(run(out, kind, seed))
    typer.echo(f"report: {out / 'report.html'}")


@app.command()
def train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="run folder, created if needed")],
    method: Annotated[str | None, typer.Option(help="see 'reshift methods'; default reshift; or your own, module:Class")] = None,
    profile: Annotated[str, typer.Option(help="paper: the authors' settings; quick: minutes on two CPU cores")] = "paper",
    config: Annotated[Path | None, typer.Option(help="TOML file")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="e.g. train.lr=1e-4; repeatable")] = None,
    seed: Annotated[int | None, typer.Option(help="default 0")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue what was stopped in --out")] = False,
) -> None:
    """Learn from normal images, calibrate on held-out ones, and leave RUN/bundle and RUN/log.jsonl."""
    with heavy_imports():
        from reshift.config import assignment, read_toml
        from reshift.inference.bundle import load_bundle
        from reshift.training.run import resolve, train_run

    layers: list[dict[str, Any]] = [read_toml(config)] if config else []
    layers += [assignment(text) for text in set_ or ()]
    layers += [{"seed": seed}] if seed is not None else []
    layers += [{"train": {"device": device}}] if device else []
    bundle = train_run(resolve(method, profile, layers), _unpacked(data), out, resume=resume)
    if os.environ.get("RANK", "0") == "0":
        trained = load_bundle(bundle)
        _warn(trained.notes() + (trained.calibration.warnings() if trained.calibration else []))
        typer.echo(f"bundle: {bundle}")


@app.command()
def select(
    configs: Annotated[list[Path], typer.Argument(metavar="CONFIG.toml…", help="the candidates; each is named by its file")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="folder for the runs and the ranking; a re-run continues there")],
    profile: Annotated[str, typer.Option(help="what the configs start from: paper or quick")] = "paper",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Device = "auto",
) -> None:
    """Rank configurations by what they find of synthetic shifts in held-out normals. Reads no test image and no label."""
    from reshift.config import read_toml
    from reshift.evaluation.select import Candidate, table
    from reshift.evaluation.select import select as run
    from reshift.training.run import resolve

    judged_on = {"data": {"holdout": 0.2}}  # whatever the method's own profile holds out
    common = {"seed": seed, "train": {"device": device}}
    candidates = [Candidate(path.stem, resolve(None, profile, [judged_on, read_toml(path), common])) for path in configs]
    typer.echo(table(run(candidates, _unpacked(data), out, seed=seed)))


@app.command()
def calibrate(bundle: BundlePath, data: Data, device: Device = "auto") -> None:
    """Set the thresholds and the p-value table anew from other normal images, without training."""
    with heavy_imports():
        from reshift.training.run import calibrate_bundle

    calibration = calibrate_bundle(bundle, _unpacked(data), device)
    chosen = calibration.reference
    typer.echo(
        f"image threshold {chosen.image_threshold:.6g}, pixel threshold {chosen.pixel_threshold:.6g}, {chosen.images} normals"
    )
    _warn(calibration.warnings())


@app.command()
def score(
    bundle: BundlePath,
    inputs: Annotated[
        list[Path], typer.Argument(metavar="INPUT...", help="images, volumes, DICOM series, folders, zips, manifests")
    ],
    out: Annotated[Path, typer.Option("--out", help="output folder; a re-run continues there")],
    dicom_out: Annotated[
        bool, typer.Option("--dicom-out", help="also dicom/: segmentation, parametric map, overlays (extra: dicom)")
    ] = False,
    overlays: Annotated[str, typer.Option(help="of all images, of flagged ones, or none")] = "all",
    device: Device = "auto",
    engine: Annotated[str, typer.Option(help="local: this process; ray: RAY_ADDRESS, or workers here (extra: ray)")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="ray: model copies at work; default one a GPU, or a core")] = None,
) -> None:
    """Score images and volumes: scores.jsonl, maps/ on their own pixels or voxels, overlays/. A bad case is recorded."""
    with heavy_imports():
        from reshift.inference.model import load_model
        from reshift.inference.score import score as run

    on_ray = _engine(bundle, inputs, engine, workers, device)
    model = load_model(bundle, "cpu" if on_ray else device)  # with Ray the workers have their own
    if model.bundle.calibration is None:
        _warn([f"{bundle} has no calibration.json: no p-values, flags or overlays; run 'reshift calibrate'"])
    else:
        _warn(model.bundle.calibration.warnings() + model.warnings())
    summary = run(model, [_unpacked(path) for path in inputs], out, dicom=dicom_out, overlays=overlays, engine=on_ray)
    typer.echo(f"{summary.cases} cases, {summary.failures} failed: {out / 'scores.jsonl'}")
    _warn(summary.notes + ([summary.warning] if summary.warning else []))
    if summary.failures:
        raise typer.Exit(FAILED_CASES)


@app.command()
def evaluate(
    bundle: BundlePath,
    data: Data,
    out: Out,
    reference: Annotated[
        str | None, typer.Option(help="normals behind the thresholds: held-out, or training (the paper's rule)")
    ] = None,
    normative: Annotated[
        bool, typer.Option("--normative", help="also measure the restorations: RQI, AHI, CACI (extra: features)")
    ] = False,
    device: Device = "auto",
) -> None:
    """Run the test split of a manifest: metrics.json and report.html."""
    with heavy_imports():
        from reshift.data.manifest import load_cases
        from reshift.evaluation.evaluate import evaluate as run
        from reshift.evaluation.evaluate import normative_indices
        from reshift.inference.model import load_model

    data = _unpacked(data)
    cases = load_cases(data)
    tests = [case for case in cases if case.split == "test"]
    if not tests:
        raise UserError(f"{data}: has no test images; evaluating needs a manifest with labelled rows in split 'test'")
    if not any(case.label for case in tests):
        _warn([f"{data}: has no abnormal test images (label 1); most metrics will be empty"])
    name = (data if data.is_dir() else data.parent).resolve().name
    model = load_model(bundle, device, reference)
    indices = normative_indices(model, [case for case in cases if case.split == "train"]) if normative else None
    metrics, errors = run(model, tests, out, name, indices)
    _print_metrics(metrics)
    typer.echo(f"report: {out / 'report.html'}")
    _warn(metrics["warnings"] + errors)
    if errors:
        raise typer.Exit(FAILED_CASES)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="EVALUATION...", help="two or more folders that 'evaluate' left")],
    out: Out,
) -> None:
    """Compare methods on the same test images: intervals, paired tests, maps side by side (compare.html, .md, .json)."""
    from reshift.evaluation.compare import compare as run
    from reshift.reports.comparison import markdown

    table = run(runs, out)
    typer.echo(markdown(table))
    typer.echo(f"page: {out / 'compare.html'}")


@app.command()
def figures(
    runs: Annotated[list[Path], typer.Argument(metavar="EVALUATION...", help="one or more folders that 'evaluate' left")],
    out: Out,
) -> None:
    """Draw the paper's figures from saved evaluations, as PDF and PNG (extra: report)."""
    from reshift.evaluation.results import load_results
    from reshift.reports.figures.paper import all_figures

    for path in all_figures([load_results(folder) for folder in runs], out):
        typer.echo(str(path))


cli_info.register(app)
cli_data.register(app)
cli_bench.register(app)


def _unpacked(path: Path) -> Path:
    """A zipped folder is unpacked for as long as the command runs; anything else is what it is."""
    from reshift.data.archive import opened

    return _open.enter_context(opened(path))


def _engine(bundle: Path, inputs: list[Path], name: str, workers: int | None, device: str) -> Any:
    """None for this process, or what scores on Ray."""
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


def _print_metrics(metrics: dict[str, Any]) -> None:
    for level, names in (("image", ("auc", "ap", "f1", "fpr", "tpr")), ("pixel", ("ap", "dice", "dice_max"))):
        values = (f"{name} {metrics[level][name]:.3f}" if metrics[level][name] is not None else f"{name} –" for name in names)
        typer.echo(f"{level}: {', '.join(values)}")


def _warn(lines: list[str]) -> None:
    for line in lines:
        typer.echo(f"warning: {line}", err=True)


def _terminate(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Entry point: what a user can cause is one line and exit 2; Ctrl-C is one line and exit 130."""
    signal.signal(signal.SIGTERM, _terminate)
    warnings.filterwarnings("ignore", module="PIL")  # about odd metadata; the pixels are what counts
    given = sys.argv[1:] or ["--help"]
    debug = "--debug" in given
    try:
        with _open:
            code = app(sorted(given, key="--debug".__ne__), standalone_mode=False)  # --debug is taken anywhere on the line
    except (UserError, OSError, _UsageError) as err:
        if debug:
            raise
        print(f"reshift: {_line(err)}", file=sys.stderr)
        raise SystemExit(INTERRUPTED if isinstance(err, Stopped) else 2) from None
    except typer.Abort:
        code = INTERRUPTED
    if code == INTERRUPTED:
        print("reshift: stopped; finished work is kept, the same command (train: with --resume) continues", file=sys.stderr)
    raise SystemExit(code)


def _line(err: Exception) -> str:
    if isinstance(err, OSError):
        return f"{err.filename}: {err.strerror}" if err.filename else str(err)
    if isinstance(err, UserError):
        return str(err)
    usage: Any = err
    return f"{usage.format_message().rstrip('.')} (see '{usage.ctx.command_path if usage.ctx else 'reshift'} --help')"
