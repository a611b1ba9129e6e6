"""The bundles below ``--models``. Only their JSON files are read here: the worker loads and checks the weights."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from reshift.config import Config, parse, read_json
from reshift.errors import UserError
from reshift.inference.calibration import Calibration
from reshift.serve.errors import Problem

MAX_JSON = 2**26
NAME = re.compile(r"[^/\\\0]{1,200}")


class Known(NamedTuple):
    """What a bundle's own files say; ``error`` where they cannot be read."""

    name: str
    path: Path
    config: Config | None = None
    calibration: Calibration | None = None
    facts: Mapping[str, Any] = MappingProxyType({})
    sha256: str | None = None
    error: str | None = None

    @property
    def heat_scale(self) -> float | None:
        """The heat-map value drawn in full colour."""
        return self.calibration.heat_scale if self.calibration else None


class Models:
    """Finds and describes bundles; a bundle that has not changed is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.known: dict[Path, tuple[tuple[int, ...], Known]] = {}

    def all(self) -> list[Known]:
        """Every bundle: FOLDER/NAME, FOLDER/NAME/bundle, or FOLDER itself."""
        return [self._read(name, path) for name, path in sorted(self._paths().items())]

    def get(self, name: str | None) -> Known:
        """One bundle by its name; without a name the only one."""
        paths = self._paths()
        if not name:
            if len(paths) == 1:
                name = next(iter(paths))
            else:
                raise Problem(422, f"say which model; known: {', '.join(sorted(paths)) or 'none, train one first'}")
        name = name.removesuffix("/bundle")
        if name not in paths:
            raise Problem(404, f"no model '{name[:80]}'; known: {', '.join(sorted(paths)) or 'none, train one first'}")
        return self._read(name, paths[name])

    def usable(self, name: str | None) -> tuple[Known, Config]:
        """One that can score; what is wrong with it is said otherwise."""
        found = self.get(name)
        if found.config is None:
            raise Problem(422, found.error or f"model '{found.name}' cannot be read")
        return found, found.config

    def _paths(self) -> dict[str, Path]:
        if _is_bundle(self.folder):
            return {self.folder.name: self.folder}
        found = {}
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(".") or NAME.fullmatch(path.name) is None or not path.is_dir():
                continue
            inner = path if _is_bundle(path) else path / "bundle"
            if _is_bundle(inner):
                found[path.name] = inner
        return found

    def _read(self, name: str, path: Path) -> Known:
        files = [path / "config.json", path / "calibration.json"]
        stamp = tuple(file.stat().st_mtime_ns if file.is_file() else 0 for file in files)
        before = self.known.get(path)
        if before is None or before[0] != stamp:
            self.known[path] = before = stamp, _describe(name, path)
        return before[1]


def _is_bundle(path: Path) -> bool:
    return (path / "config.json").is_file() and (path / "model.safetensors").is_file()


def _describe(name: str, path: Path) -> Known:
    try:
        about = _json(path / "config.json")
        config = parse(Config, about.get("config") or {})
        calibration = None
        if (path / "calibration.json").is_file():
            values = _json(path / "calibration.json")
            calibration = parse(Calibration, {key: value for key, value in values.items() if key != "sha256"})
        return Known(name, path, config, calibration, about.get("training") or {}, about.get("model_sha256"))
    except UserError as err:
        return Known(name, path, error=f"model '{name}' cannot be used: {err}")


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON:
            raise ValueError
        value = read_json(path.read_bytes())
    except OSError as err:
        raise UserError(f"{path.name} cannot be read ({err.strerror})") from None
    except ValueError:
        raise UserError(f"{path.name} is damaged; copy the bundle again") from None
    if not isinstance(value, dict):
        raise UserError(f"{path.name} is damaged; copy the bundle again")
    return value


def summary(known: Known) -> dict[str, Any]:
    """A line of the list."""
    chosen = known.calibration.reference if known.calibration else None
    return {
        "name": known.name,
        "method": known.config.method if known.config else None,
        "model_sha256": known.sha256,
        "trained": known.facts.get("date"),
        "images": known.facts.get("images"),
        "image_threshold": chosen.image_threshold if chosen else None,
        "pixel_threshold": chosen.pixel_threshold if chosen else None,
        "heat_scale": known.heat_scale,
        "error": known.error,
    }


def card(known: Known) -> dict[str, Any]:
    """All that a reader of results should know of a model."""
    readme = known.path / "README.md"
    calibration = known.calibration
    return {
        **summary(known),
        "card": readme.read_text(encoding="utf-8", errors="replace")[:100_000] if readme.is_file() else "",
        "training": dict(known.facts),
        "config": known.config.model_dump(mode="json") if known.config else None,
        "calibrated_on": calibration.reference.images if calibration else None,
        "image_quantile": calibration.image_quantile if calibration else None,
        "pixel_quantile": calibration.pixel_quantile if calibration else None,
        "scores_of_normals": list(calibration.reference.scores) if calibration else [],
        "warnings": calibration.warnings() if calibration else [],
    }
