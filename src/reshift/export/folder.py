"""``reshift export``: write a folder aside, compare it with the bundle, and only then give it its name."""

import hashlib
import inspect
import tempfile
from pathlib import Path
from typing import Any

from reshift import __version__, methods
from reshift.config import DataConfig
from reshift.data.image import MIN_SIDE
from reshift.data.level import DARK, SHOULDER, SOFTNESS, TARGET
from reshift.data.prepare import LUMA
from reshift.errors import UserError
from reshift.export.formats import FORMATS, check_packages, write_model, write_torch
from reshift.export.monai import write_configs
from reshift.export.parity import Parity, ParityError, compare, parity_images
from reshift.export.trace import trace_predictor, trace_rescorer
from reshift.inference.bundle import Bundle, load_bundle
from reshift.inference.calibration import Calibration
from reshift.inference.exported import run
from reshift.inference.exported.load import ABOUT, CHECKSUMS, FORMAT, RESCORING, RUNNERS, load_runner
from reshift.inference.model import Model
from reshift.system.files import atomic_bytes, atomic_json, atomic_text, writing

TISSUE = -0.8  # of [-1, 1]; brighter pixels are tissue (inference.acquisition.describe)
PERCENTILES = (0.5, 99.5)


def export(bundle: Path, kind: str, out: Path, data: Path | None = None) -> Parity:
    """Export ``bundle`` as ``kind`` into the new folder ``out``; refuse where it does not score like the bundle."""
    if kind not in FORMATS:
        raise UserError(f"--to {kind} is not known; use {', '.join(FORMATS)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already; choose another --out, or delete it")
    check_packages(kind)
    found = load_bundle(bundle)
    calibration = check_exportable(bundle, found)
    images = list(parity_images(found.config.data, data))  # what is wrong with them shows before the work
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent, ignore_cleanup_errors=True)
    with temporary as aside:
        folder = Path(aside) / "export"
        with writing(out):
            folder.mkdir()
        _write_models(found, kind, folder)  # before a model is made of the bundle: that replaces layers by fast twins
        parity = compare(Model(found, "cpu"), load_runner(folder / FORMATS[kind].model), calibration, images)
        if parity.wrong():
            raise ParityError(parity)
        _write_rest(bundle, found, kind, folder, parity)
        with writing(out):
            folder.replace(out)
    return parity


def check_exportable(path: Path, bundle: Bundle) -> Calibration:
    """Refuse what cannot be exported; return the thresholds."""
    method = bundle.config.method
    if why := methods.METHODS[method].no_export if method in methods.METHODS else "":
        raise UserError(f"{path}: method '{method}' cannot be exported: {why}")
    if bundle.calibration is None:
        raise UserError(f"{path}: has no calibration.json, so there are no flags to compare; run 'reshift calibrate'")
    return bundle.calibration


def _write_models(bundle: Bundle, kind: str, folder: Path) -> None:
    data = bundle.config.data
    write_model(trace_predictor(bundle.detector, data.size, data.channels), kind, folder)
    if data.sigma:
        write_torch(trace_rescorer(bundle.detector, data.size), folder / RESCORING)


def _write_rest(bundle: Path, found: Bundle, kind: str, folder: Path, parity: Parity) -> None:
    """Everything but the model; the list of checksums comes last."""
    chosen = FORMATS[kind]
    for name in ("calibration.json", "README.md"):
        if (bundle / name).is_file():
            atomic_bytes(folder / name, (bundle / name).read_bytes())
    atomic_json(folder / "prepare.json", preparation(found.config.data))
    atomic_text(folder / "run.py", script(Path(chosen.model).suffix))
    atomic_json(folder / ABOUT, about(found, kind, parity))
    if kind == "monai":
        write_configs(folder, found)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = {path.relative_to(folder).as_posix(): _listed(path.read_bytes()) for path in files}
    atomic_json(folder / CHECKSUMS, {"format": 1, "files": listed})


def _listed(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def about(bundle: Bundle, kind: str, parity: Parity) -> dict[str, Any]:
    """The content of export.json."""
    data, chosen = bundle.config.data, FORMATS[kind]
    return {
        "format": FORMAT, "reshift": __version__, "method": bundle.config.method, "to": kind,
        "model": chosen.model, "what": chosen.summary, "precision": "float32",
        "input": {"image": ["N", data.channels, data.size, data.size]},
        "outputs": {"score": ["N"], "heatmap": ["N", data.size, data.size]},
        "bundle_sha256": bundle.fingerprint, "parity": parity.summary(), "notes": bundle.notes(),
        "training": bundle.facts, "config": bundle.config.model_dump(mode="json"),
    }  # fmt: skip


def preparation(config: DataConfig) -> dict[str, Any]:
    """The content of prepare.json: all that turns a stored image into the network's input."""
    names = ("size", "channels", "scale", "level", "square", "max_pixels")
    return {
        **{name: getattr(config, name) for name in names},
        "range": [-1.0, 1.0], "luma": LUMA.tolist(), "percentiles": PERCENTILES, "resize": "bilinear, with antialiasing (Pillow)",
        "median": {"dark": DARK, "target": TARGET, "shoulder": SHOULDER, "softness": SOFTNESS},
        "min_side": MIN_SIDE, "tissue": TISSUE,
    }  # fmt: skip


def script(suffix: str) -> str:
    """The text of run.py, with the function that loads this kind of model."""
    text, (load, package) = inspect.getsource(run), RUNNERS[suffix]
    if package == "onnxruntime":  # run.py has its own
        return text
    own = inspect.getsource(load).replace(f"def {load.__name__}(", "def load_runner(")
    return text.replace(inspect.getsource(run.load_runner), own).replace("onnxruntime, not reshift", f"{package}, not reshift")
