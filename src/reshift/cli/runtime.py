"""Which runtime predicts on a CPU: torch, or ONNX Runtime with a copy of the bundle that is converted once and kept."""

import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reshift.cli.shared import warn
from reshift.errors import UserError, reason
from reshift.system.cache import cache_folder

if TYPE_CHECKING:
    from reshift.inference.inputs import ScoreCase
    from reshift.inference.model import Model
    from reshift.inference.score import Choose

RUNTIMES, ONNX = ("auto", "torch", "onnx"), "onnxruntime"
PACKAGES = ("onnx", "onnxscript", ONNX)
FASTER = frozenset({"reshift"})  # methods that were measured to be at least 1.3 times as fast as by torch (docs/performance.md)
MIN_THREADS = 2  # with one, ONNX Runtime was slower with its own thread settings; ours have not been tried on idle cores
# A conversion takes 30 CPU seconds and saves 21 to 42 ms per image: it pays after 700 to 1,400 images (docs/performance.md).
MIN_IMAGES = 1_000
VOLUME = 50  # images that a NIfTI file counts for: few thick slices, or hundreds of thin ones; it is not opened to find out

Runtime = Annotated[
    str,
    typer.Option(
        "--runtime", metavar="auto|torch|onnx",
        help="on a CPU; onnx: ONNX Runtime, with a copy of the bundle that is converted once (extra: export); auto: the faster",
    ),
]  # fmt: skip


def check_runtime(wish: str, bundle: Path, engine: str = "local") -> None:
    """Refuse what cannot be, before anything is loaded."""
    from reshift.inference.exported.load import is_exported

    if wish not in RUNTIMES:
        raise UserError(f"--runtime '{wish}' is not known; use auto, torch or onnx")
    if wish != "auto" and is_exported(bundle):
        raise UserError(f"{bundle}: an exported model has its own runtime; leave --runtime out, or give the bundle")
    if wish == "onnx" and engine != "local":
        raise UserError("--runtime onnx needs --engine local: many workers on one core each gain nothing by it")


def chooser(model: "Model", bundle: Path, wish: str) -> "Choose":
    """What ``score`` asks when it knows how much is left; a wish that cannot be is refused now, before anything is written."""
    if wish == "onnx":
        _check_model(model, bundle)

    def choose(model: "Model", earlier: str | None, missing: Sequence["ScoreCase"]) -> "Model":
        return on_runtime(model, bundle, wish, earlier, many=count_images(missing) >= MIN_IMAGES)

    return choose


def on_runtime(model: "Model", bundle: Path, wish: str, earlier: str | None = None, *, many: bool = True) -> "Model":
    """The model itself, or the same on ONNX Runtime.

    ``auto`` keeps the runtime of ``earlier`` records, if it can be. It converts a bundle for that, or for ``many`` images.
    """
    from reshift.inference.exported.load import is_exported

    if wish == "onnx":
        _check_model(model, bundle)
    elif wish == "torch" or is_exported(bundle) or earlier == "torch" or not _suits(model, keep=earlier == ONNX):
        return model
    try:
        return _converted(model, bundle, make=many or wish == "onnx" or earlier == ONNX) or model
    except Exception as err:  # a full disk, a refused conversion, whatever a converter raises: torch does it, too
        why = " ".join(reason(err).split())[:300]
        if wish == "onnx":
            raise UserError(f"{bundle}: cannot be converted for ONNX Runtime ({why}); use --runtime torch") from err
        warn([f"{bundle}: could not be converted for ONNX Runtime, so torch predicts ({why}); --runtime torch does not try"])
        return model


def count_images(cases: Sequence["ScoreCase"]) -> int:
    """How many images there are, about."""
    return sum(len(case.input.series.files) if case.input.series else VOLUME if case.volume else 1 for case in cases)


def _check_model(model: "Model", bundle: Path) -> None:
    """What ``--runtime onnx`` needs."""
    from reshift.export.cached import check_convertible
    from reshift.system.device import VARIABLE as AMP

    if model.device.type != "cpu":
        raise UserError("--runtime onnx runs on the CPU; add --device cpu")
    if os.environ.get(AMP) == "bf16" and model.detector.bf16_cpu:
        raise UserError(f"{AMP}=bf16: ONNX Runtime predicts in float32; unset it, or use --runtime torch")
    check_convertible(bundle, model.bundle)


def _suits(model: "Model", *, keep: bool) -> bool:
    """Whether ``auto`` takes ONNX Runtime: it can be had without a word, and was measured to be faster, or is to be kept."""
    from torch import get_num_threads

    ready = model.device.type == "cpu" and model.bundle.calibration is not None and cache_folder("auto") is not None
    faster = model.bundle.config.method in FASTER and get_num_threads() >= MIN_THREADS
    return ready and (keep or faster) and all(find_spec(name) for name in PACKAGES)


def _converted(model: "Model", bundle: Path, *, make: bool) -> "Model | None":
    from reshift.export.cached import find_conversion, make_conversion
    from reshift.inference.model import Model

    begun, how = time.monotonic(), ""
    if (detector := find_conversion(model.bundle)) is None:
        if not make:
            return None
        typer.echo("CPU: converting the bundle for ONNX Runtime, once; about half a minute", err=True)
        detector = make_conversion(bundle, model.bundle)
        how = f", converted once ({time.monotonic() - begun:.0f} s)"
    typer.echo(f"CPU: ONNX Runtime{how}; --runtime torch for torch", err=True)
    return Model(model.bundle._replace(detector=detector), "cpu")
