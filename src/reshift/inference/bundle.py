"""The artefact on disk: ``model.safetensors``, ``config.json``, ``calibration.json``, ``README.md``. No pickle anywhere."""

import hashlib
import json
import os
import shutil
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn
from torch.nn.modules import module as torch_module

from reshift import __version__, methods
from reshift.config import Config, parse, read_json
from reshift.errors import UserError
from reshift.inference.calibration import Calibration
from reshift.inference.features import Records, parse_records, record, require
from reshift.methods.detector import Detector
from reshift.system.files import atomic_bytes, atomic_json, atomic_text, writing

FORMAT = 1  # raised when an older reshift could misread a bundle
MAX_WHY = 200  # characters of what a library says
MAX_JSON = 2**26  # bytes of a JSON file: the scores of three million normals
ASIDE = ".new"  # folder in the bundle while it is replaced
FILES = ("model.safetensors", "calibration.json", "README.md", "config.json")  # in the order in which they move up
EXTRA_BYTES = 2**28  # by which a network in memory and its weights on disk may differ beside a factor of two


class Bundle(NamedTuple):
    """A trained detector and all that is known about it."""

    detector: Detector
    config: Config
    calibration: Calibration | None
    facts: dict[str, Any]  # trained on what, when, for how long
    fingerprint: str  # of the weights
    features: Records = MappingProxyType({})  # the pretrained networks it was made with

    def notes(self) -> list[str]:
        """What the method itself wants its users to know."""
        return self.detector.notes()


def build(config: Config) -> Detector:
    """Make the untrained detector that ``config`` describes; the same seed gives the same initial weights."""
    cls = methods.get(config.method)
    settings = parse(cls.Settings, config.model, "model")
    if config.seed >= 2**63:
        raise UserError(f"setting 'seed' = {config.seed}: too large; use a number below 2^63")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            detector: Detector = cls(settings, config.data.size, config.data.channels)
        except ValueError as err:
            raise UserError(f"method '{config.method}': {err}") from None
    return detector


def save_bundle(folder: Path, module: nn.Module, config: Config, calibration: Calibration, facts: dict[str, Any]) -> None:
    """Write the bundle; config.json, which vouches for the weights, comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = _weights(module)
    values = calibration.model_dump()
    atomic_bytes(folder / "model.safetensors", weights)
    atomic_json(folder / "calibration.json", {"sha256": _checksum(values), **values})
    atomic_text(folder / "README.md", model_card(config, calibration, facts))
    about = {"format": FORMAT, "reshift": __version__, "model_sha256": hashlib.sha256(weights).hexdigest(), "training": facts}
    if names := getattr(module, "feature_names", ()):
        about["features"] = record(names)
    atomic_json(folder / "config.json", {**about, "config": config.model_dump()})


def replace_bundle(folder: Path, module: nn.Module, config: Config, calibration: Calibration, facts: dict[str, Any]) -> None:
    """Replace a bundle: written aside first, so that a kill at any moment leaves the old one or the new one.

    From the moment that the new ``config.json`` is there, the files aside count, see ``_place``; then they move up.
    """
    with writing(folder):
        _move_up(folder)  # what a killed process left
        try:
            save_bundle(folder / ASIDE, module, config, calibration, facts)
        finally:
            _move_up(folder)


def _move_up(folder: Path) -> None:
    """Finish a complete replacement, and remove an incomplete one."""
    aside = folder / ASIDE
    if (aside / "config.json").exists():
        for name in FILES:
            if (aside / name).exists():
                (aside / name).replace(folder / name)
    shutil.rmtree(aside, ignore_errors=True)


def weights_sha256(module: nn.Module) -> str:
    """A hash of the weights, as ``config.json`` has it."""
    return hashlib.sha256(_weights(module)).hexdigest()


def _weights(module: nn.Module) -> bytes:
    return save({name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()})


def _place(folder: Path, name: str) -> Path:
    """Where a file of the bundle is: aside, if a replacement was complete but killed before all its files had moved up."""
    aside = folder / ASIDE
    return aside / name if (aside / "config.json").exists() and os.path.lexists(aside / name) else folder / name


def load_bundle(folder: Path) -> Bundle:
    """Read a bundle and check it. A missing calibration is allowed here; whoever needs it says so."""
    about = _read_json(folder, "config.json")
    if about.get("format") != FORMAT:
        theirs = f"format {about.get('format')}, by reshift {about.get('reshift', 'unknown')}"
        raise UserError(
            f"{folder}: a bundle of another version ({theirs}; this is {__version__}, format {FORMAT}); train it again"
        )
    size = _size(folder, "model.safetensors")
    with _naming_file(folder / "config.json"):
        config = parse(Config, _table(about.get("config")))
        facts, features = _table(about.get("training")), parse_records(about.get("features"))
    require(folder, features)
    with _naming_file(folder / "config.json"), _at_most(2 * size + EXTRA_BYTES):
        detector = build(config)
    calibration = _load_calibration(folder) if os.path.lexists(_place(folder, "calibration.json")) else None
    known = sum(value.nbytes for value in detector.state_dict().values())
    weights = _read(folder, "model.safetensors", 2 * known + EXTRA_BYTES)
    fingerprint = hashlib.sha256(weights).hexdigest()
    if fingerprint != about.get("model_sha256"):
        raise UserError(
            f"{folder / 'model.safetensors'}: damaged, or of another model (its checksum is not config.json's); copy it again"
        )
    try:
        detector.load_state_dict(load(weights))
    except (RuntimeError, SafetensorError) as err:
        why = " ".join(str(err).split())[:MAX_WHY]
        advice = "if another version of Reshift made this bundle, use that one, or train again"
        raise UserError(f"{folder}: the weights do not fit config.json ({why}); {advice}") from None
    detector.eval().requires_grad_(False)
    return Bundle(detector, config, calibration, facts, fingerprint, features)


def model_card(config: Config, calibration: Calibration, facts: dict[str, Any]) -> str:
    """Return the bundle's README: what it is, what it saw, what its thresholds are worth."""
    chosen, data, known = calibration.reference, config.data, defaultdict(lambda: "?", facts)
    warnings = "".join(f"\n- **Warning:** {text}." for text in calibration.warnings())
    return f"""# Reshift bundle: {config.method}

Trained on **{known["images"]} normal images** of {known["subjects"]} subjects from `{known["dataset"]}` (data fingerprint
`{known["data"]}`), seed {config.seed}, in {known["seconds"]} s. It has never seen a diseased image.

- Input: {data.size}×{data.size}×{data.channels}, centre-cropped, scaled by rule `{data.scale}`.
- An image is flagged above {chosen.image_threshold:.6g}: quantile {calibration.image_quantile} of {chosen.normals}
  ({calibration.default}).
- A pixel is marked above {chosen.pixel_threshold:.6g}, as {_share(chosen.pixel_share)} of their pixels are; quantile
  {calibration.pixel_quantile} is {calibration.quantile_threshold:.6g}.{warnings}

```python
import reshift
[result] = reshift.load("path/to/this/folder").predict("scan.png")
```

A high score means "unlike the training images", which includes other scanners, body parts and artefacts. For research; not a
medical device.
"""


def _share(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.2%}"


@contextmanager
def _at_most(size: int) -> Iterator[None]:
    """Stop building a network when its tensors exceed ``size`` bytes: before they are filled, they take no memory."""
    used, thread = 0, get_ident()

    def count(_module: nn.Module, _name: str, value: torch.Tensor | None) -> None:
        nonlocal used
        if value is not None and get_ident() == thread:
            used += value.nbytes
            if used > size:
                raise UserError("describes a larger network than model.safetensors holds; copy the bundle again")

    hooks = [
        torch_module.register_module_parameter_registration_hook(count),
        torch_module.register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    except (RuntimeError, MemoryError) as err:
        raise UserError(f"its network cannot be built ({str(err).splitlines()[0]}); copy the bundle again") from None
    finally:
        for hook in hooks:
            hook.remove()


def _load_calibration(folder: Path) -> Calibration:
    path = _place(folder, "calibration.json")
    with _naming_file(path):
        values = _read_json(folder, path.name)
        checksum = values.pop("sha256", None)  # bundles of the first version have none
        calibration = parse(Calibration, values)
        if calibration.held_out is None and calibration.training is None:
            raise UserError("it holds no normals; run 'reshift calibrate'")
    if checksum is not None and checksum != _checksum(values):
        remedy = "copy it again, or delete it and run 'reshift calibrate'"
        raise UserError(f"{path}: damaged, its values do not match its checksum; {remedy}")
    return calibration


def _checksum(values: dict[str, Any]) -> str:
    """A hash that does not depend on the layout of the file."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Name the file in the errors raised inside: a wrong setting of a bundle was not typed by the user."""
    try:
        yield
    except methods.ForeignMethodError as err:
        raise UserError(f"{path}: {err}") from err.__cause__
    except UserError as err:
        text = str(err)
        raise UserError(text if text.startswith(str(path)) else f"{path}: damaged, or of another version: {text}") from None


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError("a table of settings is missing; copy the bundle again")
    return value


def _size(folder: Path, name: str) -> int:
    """Bytes of a file of the bundle. A pipe would wait for ever, and a device has no end, so only regular files are read."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such bundle folder; 'reshift train' makes one, RUN/bundle")
    path = _place(folder, name)
    try:
        about = path.stat()
    except FileNotFoundError:
        inner = folder / "bundle"
        remedy = f"did you mean {inner}?" if inner.is_dir() else "copy it again, or finish its training with --resume"
        raise UserError(f"{folder}: not a complete bundle, {name} is missing; {remedy}") from None
    except OSError as err:
        raise UserError(f"{path}: cannot be read ({err.strerror})") from None
    if not stat.S_ISREG(about.st_mode):
        raise UserError(f"{path}: is not a regular file; copy the bundle again")
    return about.st_size


def _read(folder: Path, name: str, limit: int) -> bytes:
    size, path = _size(folder, name), _place(folder, name)
    if size > limit:
        raise UserError(f"{path}: damaged, {size:,} bytes are more than such a file can have; copy the bundle again")
    try:
        return path.read_bytes()
    except OSError as err:
        raise UserError(f"{path}: cannot be read ({err.strerror})") from None


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    path = _place(folder, name)
    try:
        value = read_json(_read(folder, name, MAX_JSON))
    except ValueError:
        raise UserError(f"{path}: damaged, not valid JSON; copy the bundle again") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: damaged, not a JSON object; copy the bundle again")
    return value
