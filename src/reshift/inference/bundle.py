"""The artefact on disk: ``model.safetensors``, ``config.json``, ``calibration.json``, ``README.md``. No pickle anywhere."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from reshift import __version__, methods
from reshift.config import Config, parse
from reshift.errors import UserError
from reshift.inference.calibration import Calibration
from reshift.methods.detector import Detector
from reshift.system.files import atomic_bytes, atomic_json, atomic_text

FORMAT = 1  # raised when an older reshift could misread a bundle


class Bundle(NamedTuple):
    """A trained detector and all that is known about it."""

    detector: Detector
    config: Config
    calibration: Calibration | None
    facts: dict[str, Any]  # trained on what, when, for how long
    fingerprint: str  # of the weights

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
    weights = save({name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()})
    fingerprint = hashlib.sha256(weights).hexdigest()
    atomic_bytes(folder / "model.safetensors", weights)
    save_calibration(folder, calibration)
    atomic_text(folder / "README.md", model_card(config, calibration, facts))
    about = {"format": FORMAT, "reshift": __version__, "model_sha256": fingerprint, "training": facts}
    atomic_json(folder / "config.json", {**about, "config": config.model_dump()})


def save_calibration(folder: Path, calibration: Calibration) -> None:
    """Write ``calibration.json`` alone."""
    atomic_json(folder / "calibration.json", calibration.model_dump())


def load_bundle(folder: Path) -> Bundle:
    """Read a bundle and check it. A missing calibration is allowed here; whoever needs it says so."""
    about = _read_json(folder, "config.json")
    if about.get("format") != FORMAT:
        theirs = f"format {about.get('format')}, by reshift {about.get('reshift', 'unknown')}"
        raise UserError(
            f"{folder}: a bundle of another version ({theirs}; this is {__version__}, format {FORMAT}); train it again"
        )
    with _blaming(folder / "config.json"):
        config = parse(Config, _table(about.get("config")))
        facts = _table(about.get("training"))
        detector = build(config)
    calibration = _load_calibration(folder) if (folder / "calibration.json").exists() else None
    weights = _read(folder, "model.safetensors")
    fingerprint = hashlib.sha256(weights).hexdigest()
    if fingerprint != about.get("model_sha256"):
        raise UserError(
            f"{folder / 'model.safetensors'}: damaged, or of another model (its checksum is not config.json's); copy it again"
        )
    try:
        detector.load_state_dict(load(weights))
    except (RuntimeError, SafetensorError) as err:
        raise UserError(f"{folder}: the weights do not fit config.json ({str(err).splitlines()[0]})") from None
    detector.eval().requires_grad_(False)
    return Bundle(detector, config, calibration, facts, fingerprint)


def model_card(config: Config, calibration: Calibration, facts: dict[str, Any]) -> str:
    """Return the bundle's README: what it is, what it saw, what its thresholds are worth."""
    chosen, data, known = calibration.reference, config.data, defaultdict(lambda: "?", facts)
    warnings = "".join(f"\n- **Warning:** {text}." for text in calibration.warnings())
    return f"""# Reshift bundle: {config.method}

Trained on **{known["images"]} normal images** of {known["subjects"]} subjects from `{known["dataset"]}` (data fingerprint
`{known["data"]}`), seed {config.seed}, in {known["seconds"]} s. It has never seen a diseased image.

- Input: {data.size}×{data.size}×{data.channels}, centre-cropped, scaled by rule `{data.scale}`.
- An image is flagged above {chosen.image_threshold:.6g}: quantile {calibration.image_quantile} of {chosen.images} normals
  ({calibration.default}).
- A pixel is marked above {chosen.pixel_threshold:.6g}: quantile {calibration.pixel_quantile} of their pixels.{warnings}

```python
import reshift
[result] = reshift.load("path/to/this/folder").predict("scan.png")
```

A high score means "unlike the training images", which includes other scanners, body parts and artefacts. For research; not a
medical device.
"""


def _load_calibration(folder: Path) -> Calibration:
    with _blaming(folder / "calibration.json"):
        calibration = parse(Calibration, _read_json(folder, "calibration.json"))
        if calibration.held_out is None and calibration.training is None:
            raise UserError("it holds no normals; run 'reshift calibrate'")
    return calibration


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """A wrong setting in a bundle is nobody's typing mistake: name the file that holds it."""
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


def _read(folder: Path, name: str) -> bytes:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such bundle folder; 'reshift train' makes one, RUN/bundle")
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        inner = folder / "bundle"
        remedy = f"did you mean {inner}?" if inner.is_dir() else "copy it again, or finish its training with --resume"
        raise UserError(f"{folder}: not a complete bundle, {name} is missing; {remedy}") from None
    except OSError as err:
        raise UserError(f"{folder / name}: cannot be read ({err.strerror})") from None


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    try:
        value = json.loads(_read(folder, name), parse_constant=_no_constant)
    except ValueError:
        raise UserError(f"{path}: damaged, not valid JSON; copy the bundle again") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: damaged, not a JSON object; copy the bundle again")
    return value


def _no_constant(name: str) -> None:
    """We never write NaN or Infinity; Python's reader would take them."""
    raise ValueError(name)
