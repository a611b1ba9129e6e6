"""The promise of an export: on normals and on synthetic shifts of them, the exported model says what the bundle says."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.cases import expand_volumes
from reshift.data.image import Image
from reshift.data.manifest import load_cases
from reshift.data.phantom import KINDS as ANATOMIES
from reshift.data.phantom import draw
from reshift.data.prepare import prepare
from reshift.data.read import read_image
from reshift.errors import UserError
from reshift.evaluation.shift_bank import KINDS as SHIFTS
from reshift.evaluation.shift_bank import apply_shift
from reshift.inference.calibration import Calibration
from reshift.inference.exported.load import Runner
from reshift.inference.model import Model
from reshift.system.progress import progress

Named = tuple[str, NDArray[np.float32]]  # a prepared image (C, S, S) and what it is called
NORMALS = 6  # images that are compared, of the user's or drawn; each also with two of the seven kinds of shift
SCORE_TOLERANCE = 1e-3  # of the standard deviation of the calibration normals' scores
SMALLEST = 1e-6  # a tolerance of scores is not below: float32 has no more digits
MAP_TOLERANCE = 1e-2  # of the pixel threshold
SHOWN = 8  # rows of the table that a refusal shows


class Row(NamedTuple):
    """One image, by the bundle and by the exported model."""

    name: str
    score: float
    exported: float
    map_difference: float
    threshold: float

    @property
    def difference(self) -> float:
        """Of the scores."""
        return abs(self.score - self.exported)


class Parity(NamedTuple):
    """All images, and what is allowed."""

    rows: list[Row]
    score_tolerance: float
    map_tolerance: float

    def wrong(self) -> list[Row]:
        """Where the two differ too much, the worst first."""
        found = [row for row in self.rows if not self._same(row)]
        return sorted(found, key=lambda row: -row.difference)

    def _same(self, row: Row) -> bool:
        """Tolerances hold, and flags agree. A normal that set the threshold lies on it: rounding may move it to either side."""
        near = max(abs(row.score - row.threshold), abs(row.exported - row.threshold)) <= self.score_tolerance
        flags = near or (row.score > row.threshold) == (row.exported > row.threshold)
        return flags and row.difference <= self.score_tolerance and row.map_difference <= self.map_tolerance

    def summary(self) -> dict[str, Any]:
        """What export.json keeps."""
        return {
            "images": len(self.rows),
            "flagged": sum(row.exported > row.threshold for row in self.rows),
            "largest_score_difference": max(row.difference for row in self.rows),
            "score_tolerance": self.score_tolerance,
            "largest_map_difference": max(row.map_difference for row in self.rows),
            "map_tolerance": self.map_tolerance,
        }

    def table(self) -> list[str]:
        """The images that differ too much, for a terminal."""
        lines = [f"{'image':28} {'bundle':>12} {'exported':>12} {'difference':>11} {'map':>9}  flags"]
        for row in self.wrong()[:SHOWN]:
            flags = "/".join("yes" if score > row.threshold else "no" for score in (row.score, row.exported))
            numbers = f"{row.score:12.6g} {row.exported:12.6g} {row.difference:11.2g} {row.map_difference:9.2g}"
            lines.append(f"{row.name[-28:]:28} {numbers}  {flags}")
        return lines


class ParityError(UserError):
    """The exported model does not score like the bundle; ``table`` has the images."""

    def __init__(self, parity: Parity) -> None:
        wrong = len(parity.wrong())
        allowed = f"score {parity.score_tolerance:.2g}, heat-map {parity.map_tolerance:.2g}"
        differs = f"the exported model differs on {wrong} of {len(parity.rows)} images"
        super().__init__(f"{differs} (allowed: {allowed}); it is not kept")
        self.table = parity.table()


def compare(model: Model, runner: Runner, calibration: Calibration, images: Sequence[Named]) -> Parity:
    """Predict every image with both."""
    chosen, rows = calibration.reference, list[Row]()
    with progress("comparing", len(images)) as advance:
        for name, pixels in images:
            [score], [heatmap] = model.launch(pixels[None])()
            theirs, their_map = runner(pixels[None])
            difference = np.abs(heatmap - their_map[0]).max()
            rows.append(Row(name, score, float(theirs[0]), float(difference), chosen.image_threshold))
            advance()
    spread = float(np.std(chosen.scores))
    pixel = chosen.pixel_threshold if chosen.pixel_threshold > 0.0 else 1.0
    return Parity(rows, max(SMALLEST, SCORE_TOLERANCE * spread), MAP_TOLERANCE * pixel)


def parity_images(config: DataConfig, data: Path | None) -> Iterator[Named]:
    """Prepared images ``(C, S, S)``: normals, and two kinds of shift of each, in turns."""
    kinds = list(SHIFTS)
    for i, (name, pixels) in enumerate(_drawn(config) if data is None else _read(config, data)):
        yield name, pixels
        for j in (2 * i, 2 * i + 1):
            kind = kinds[j % len(kinds)]
            yield f"{name} {kind}", apply_shift(pixels, kind, (0, j)).pixels


def _drawn(config: DataConfig) -> Iterator[Named]:
    """A bundle holds no images: phantoms of every anatomy."""
    for i in range(NORMALS):
        kind = ANATOMIES[i % len(ANATOMIES)]
        pixels = draw(kind, i, 2, abnormal=False, size=max(128, config.size), seed=0).pixels
        yield f"phantom {kind} {i}", prepare(Image(pixels[:, :, None], 8, Path("phantom")), config).pixels


def _read(config: DataConfig, data: Path) -> Iterator[Named]:
    """Normals of the user's, spread over the data set."""
    normal = [case for case in load_cases(data, config.subject) if case.label == 0]
    cases = expand_volumes(_spread(normal), config)
    if not cases:
        raise UserError(f"{data}: holds no normal images to compare with")
    for case in _spread(cases):
        yield case.name, prepare(read_image(case.image, case.slice, config.max_pixels), config).pixels


def _spread(cases: Sequence[Any]) -> list[Any]:
    return [cases[i * len(cases) // min(NORMALS, len(cases))] for i in range(min(NORMALS, len(cases)))]
