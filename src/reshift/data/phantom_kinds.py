"""The three kinds of phantom: brain, breast ultrasound and chest X-ray, each healthy or with one of three lesions.

Coordinates run from -1 to 1 across the image (y downwards), so a subject has the same anatomy at every image size.
Soft edges are ramps that reach exactly 0 and 1, so a lesion does not change distant pixels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

Field = NDArray[np.float64]
Point = tuple[float, float]
Drawing = tuple[Field, NDArray[np.bool_], str]  # image in 0 to 1, lesion mask, what the lesion is ("" when healthy)


@dataclass(frozen=True)
class View:
    """One image to draw: its size, its slice, and an independent random generator for each thing that varies."""

    size: int
    level: int
    finding: int  # which of its kind's three lesions, from 1; 0 when healthy
    anatomy: Generator  # shared by the subject's slices
    exposure: Generator  # this slice's gain and noise
    disease: Generator  # shared by the subject's slices
    lesion: Generator  # this slice's lesion

    def grid(self) -> tuple[Field, Field]:
        """Pixel centres: x from left to right, y from top to bottom."""
        axis = (np.arange(self.size) + 0.5) * (2 / self.size) - 1
        x, y = np.meshgrid(axis, axis)
        return x, y

    def noise(self, rng: Generator, rows: int, columns: int) -> Field:
        """Smooth noise of about unit variance with that many cells across the image."""
        return self._enlarge(rng.standard_normal((rows, columns)))

    def drift(self, cells: int) -> Field:
        """Smooth anatomical noise that changes gradually from one level to the next."""
        here, elsewhere = self.anatomy.standard_normal((2, cells, cells))
        turn = 0.25 * self.level
        return self._enlarge(here * np.cos(turn) + elsewhere * np.sin(turn))

    def _enlarge(self, cells: Field) -> Field:
        image = Image.fromarray(cells.astype(np.float32))
        return np.asarray(image.resize((self.size, self.size), Image.Resampling.BICUBIC), dtype=np.float64) * 1.2

    def somewhere_in(self, tissue: Field) -> Point:
        """A point well inside ``tissue`` (0 to 1): near the same place in all slices of a subject."""
        guesses = self.disease.uniform(-0.8, 0.8, (60, 2)) + self.lesion.normal(0, 0.03, 2)
        cells = ((np.clip(guesses, -0.99, 0.99) + 1) * self.size / 2).astype(int)
        good = np.flatnonzero(tissue[cells[:, 1], cells[:, 0]] > 0.95)
        column, row = cells[good[0]] if len(good) else np.argwhere(tissue == tissue.max())[0, ::-1]
        return float((column + 0.5) * 2 / self.size - 1), float((row + 0.5) * 2 / self.size - 1)

    def blob(self, centre: Point, radii: Point, rough: float) -> Field:
        """Signed distance to an ellipse whose outline wanders by ``rough`` of its radius, positive inside."""
        x, y = self.grid()
        # At least a pixel and a half in radius: in a small image, too, a lesion is more than a speck.
        radii = (max(radii[0], 3 / self.size), max(radii[1], 3 / self.size))
        angle = np.arctan2(y - centre[1], x - centre[0])
        outline = np.clip(1.2 * _waves(self.lesion, angle, range(2, 9)), -1, 1)
        return _ellipse(x, y, centre, radii) + rough * min(radii) * outline


def _ramp(signed: Field, width: float) -> Field:
    """0 to 1 as ``signed`` goes from -width/2 to width/2, smooth at both ends."""
    t = np.clip(signed / width + 0.5, 0, 1)
    return np.asarray(t * t * (3 - 2 * t))


def _waves(rng: Generator, angle: Field, lobes: range, turn: float = 0.0) -> Field:
    """A random function of the angle, with zeros about twice as many as its lobes."""
    total = np.zeros_like(angle)
    for count in lobes:
        total += rng.normal(0, 1 / count) * np.cos(count * angle + rng.uniform(0, 2 * np.pi) + turn)
    return total


def _to_zero(field: Field) -> Field:
    """Approximate distance to where ``field`` crosses zero, so that lines drawn there have an even width."""
    down, right = np.gradient(field, 2 / len(field))
    return np.asarray(np.abs(field) / (np.hypot(down, right) + 1e-6))


def _ellipse(x: Field, y: Field, centre: Point, radii: Point, tilt: float = 0.0) -> Field:
    """Approximate signed distance to an ellipse, positive inside."""
    dx, dy = x - centre[0], y - centre[1]
    along, across = dx * np.cos(tilt) + dy * np.sin(tilt), dy * np.cos(tilt) - dx * np.sin(tilt)
    return np.asarray((1 - np.hypot(along / radii[0], across / radii[1])) * min(radii))


def brain(view: View) -> Drawing:
    """Axial FLAIR-like slice without skull; higher levels lie nearer the vertex."""
    rng = view.anatomy
    height = 1 - rng.uniform(0.8, 1.0) * np.exp(-0.25 * view.level)
    u, v = _head_coordinates(view, height)
    depth, to_fold = _cortex(view, u, v, height)
    ventricles = _ventricles(rng, u, v, height)
    inside, in_ventricle = _ramp(depth, 0.03), _ramp(ventricles, 0.025)
    fluid = np.maximum(_ramp(rng.uniform(0.008, 0.014) - to_fold, 0.03) * rng.uniform(0.5, 0.9), in_ventricle)
    grey = np.maximum(_ramp(rng.uniform(0.05, 0.065) - to_fold, 0.035), 0.7 * _nuclei(u, v, height))
    # Healthy ventricles have a bright rim of varying strength: brightness beside them is not yet disease.
    rim = _ramp(0.025 - np.abs(ventricles + 0.025), 0.04) * rng.uniform(0.02, 0.12)
    white = rng.normal(0.47, 0.04) + 0.02 * view.drift(9) + 0.012 * view.drift(28)
    tissue = white + rng.uniform(0.1, 0.2) * grey + rim
    note, cover, change = "", np.zeros_like(u), np.zeros_like(u)
    if view.finding:
        note, cover, change = _brain_lesion(view, (1 - _ramp(ventricles + 0.02, 0.02)) * _ramp(depth - 0.04, 0.05))
    fluid = fluid * (1 - cover)
    image = inside * ((tissue + cover * change) * (1 - fluid) + 0.07 * fluid)
    bias = view.exposure.normal(1, 0.05) + view.exposure.uniform(0.04, 0.1) * view.noise(view.exposure, 3, 3)
    real, imaginary = view.exposure.normal(0, view.exposure.uniform(0.01, 0.022), (2, view.size, view.size))
    return np.hypot(image * bias + real, imaginary), cover > 0.5, note


def _head_coordinates(view: View, height: float) -> tuple[Field, Field]:
    """Image coordinates seen from the subject's head: the brain's outline becomes about the unit circle."""
    rng = view.anatomy
    (x, y), tilt = view.grid(), rng.normal(0, 0.08)
    x, y = x - rng.normal(0, 0.03), y - rng.normal(0, 0.03)
    u, v = x * np.cos(tilt) + y * np.sin(tilt), y * np.cos(tilt) - x * np.sin(tilt)
    taper = np.sqrt(1 - (max(height - 0.35, 0) / 0.95) ** 2)
    v = v / (rng.normal(0.84, 0.03) * taper) + 0.02 * view.drift(5)
    u = u / (rng.normal(0.68, 0.03) * taper) + 0.025 * view.drift(5)
    return u / (1 + 0.1 * v), v


def _cortex(view: View, u: Field, v: Field, height: float) -> tuple[Field, Field]:
    """Depth below the brain's surface, and distance to the surface or nearest fold, in about image units."""
    radius = (np.abs(u) ** 2.15 + np.abs(v) ** 2.15) ** (1 / 2.15)
    depth = (1 - radius) * 0.75 + 0.01 * view.drift(10)
    folds = _waves(view.anatomy, np.arctan2(v, u) + 0.12 * view.drift(8), range(7, 17), 0.3 * view.level)
    sulcus = _to_zero(folds) + 0.6 * np.maximum(depth - 0.2 - 0.08 * view.drift(8), 0)
    bridge = max(0.55 - 0.7 * height, 0)  # the hemispheres are joined in the middle of the lower slices
    fissure = np.abs(u + 0.015 * view.drift(6)) * 0.7 + 0.6 * np.maximum(bridge - np.abs(v), 0)
    return depth, np.minimum(np.minimum(np.maximum(depth, 0), sulcus), fissure)


def _ventricles(rng: Generator, u: Field, v: Field, height: float) -> Field:
    """Signed distance to the lateral ventricles (and the third, low down), positive inside."""
    width, lopsided = float(np.exp(rng.normal(0, 0.3))), rng.normal(0, 0.12)
    shape = _ellipse(u, v, (0, 0.02), (0.03 * width, 0.13)) - max(0, height - 0.25)
    for side in (-1, 1):
        w, scale = u * side, width * (1 + side * lopsided)
        front = _ellipse(w, v, (0.11, -0.24), (0.06 * scale, 0.2), -0.35)
        back = _ellipse(w, v, (0.2, 0.32), (0.07 * scale, 0.24), -0.3)
        body = _ellipse(w, v, (0.1, 0.02), (0.055 * scale, 0.36), -0.1) - max(0, 0.3 - height) * 0.3
        shape = np.maximum(shape, np.maximum(body, np.maximum(front, back) - max(0, height - 0.4) * 0.2))
    return np.asarray(shape - max(0, height - 0.5) * 0.25)  # they close towards the vertex


def _nuclei(u: Field, v: Field, height: float) -> Field:
    """Thalamus and lentiform nucleus on both sides, gone in the upper slices."""
    thalamus = _ellipse(np.abs(u), v, (0.16, 0.1), (0.1, 0.16), -0.3)
    lentiform = _ellipse(np.abs(u), v, (0.38, -0.06), (0.08, 0.22), -0.2)
    return np.asarray(_ramp(np.maximum(thalamus, lentiform), 0.05) * np.clip(1.5 - 2.5 * height, 0, 1))


def _brain_lesion(view: View, parenchyma: Field) -> tuple[str, Field, Field]:
    """The lesion's name, its coverage in 0 to 1, and how much brighter the tissue under it gets."""
    rng = view.lesion
    note = ("", "tumour", "infarct", "white matter lesions")[view.finding]
    many = note == "white matter lesions"
    change = rng.uniform(0.1, 0.36) + 0.04 * view.noise(rng, 14, 14)
    cover = np.zeros_like(parenchyma)
    for radius in rng.uniform(0.04, 0.08, int(rng.integers(3, 8))) if many else rng.uniform(0.1, 0.25, 1):
        shape = view.blob(view.somewhere_in(parenchyma), (radius, radius * rng.uniform(0.7, 1.4)), 0.3)
        cover = np.maximum(cover, _ramp(shape, 0.04 if many else 0.07) * parenchyma)
        if note == "tumour" and rng.random() < 0.7:
            change -= rng.uniform(0.2, 0.5) * _ramp(shape - 0.55 * radius, 0.08)
    return note, cover, change


def ultrasound(view: View) -> Drawing:
    """Breast-ultrasound-like frame: skin, fat, gland and muscle from the probe downwards; levels move the probe."""
    rng, (x, y) = view.anatomy, view.grid()
    depth = (y + 1) / 2
    fat_top, gland_top = rng.uniform(0.05, 0.09), rng.uniform(0.18, 0.36)
    muscle_top = gland_top + rng.uniform(0.26, 0.48)
    below_skin = _ramp(depth - fat_top + 0.006 * view.drift(4), 0.02)
    below_fat = _ramp(depth - gland_top + 0.035 * view.drift(4) + 0.015 * view.drift(9), 0.05)
    to_muscle = depth - muscle_top + 0.03 * view.drift(3)
    to_wall = to_muscle - rng.uniform(0.1, 0.3) + 0.01 * view.drift(4)
    ligaments = np.exp(-np.abs(view.drift(6) + 0.4 * view.drift(14)) * 7) * rng.uniform(0.2, 0.45)
    # Darker lobules of fat within the gland are healthy: a dark patch alone is not yet a mass.
    gland = rng.uniform(0.42, 0.65) + 0.08 * view.drift(12) - rng.uniform(0.06, 0.2) * _ramp(view.drift(7) - 0.9, 0.9)
    fibres = 0.1 * np.sin(70 * to_muscle + 2 * view.drift(6))
    echo = 0.7 + below_skin * (rng.uniform(0.2, 0.34) + ligaments - 0.7)
    echo += below_fat * (gland - echo)
    echo += _ramp(to_muscle, 0.03) * (0.36 + fibres - echo) + 0.4 * _ramp(0.012 - np.abs(to_muscle), 0.02)
    echo += _ramp(to_wall, 0.03) * (0.14 - echo) + 0.6 * _ramp(0.015 - np.abs(to_wall), 0.03)
    note, cover, beyond = "", np.zeros_like(x), np.ones_like(x)
    if view.finding:
        target = below_fat * (1 - _ramp(to_muscle + 0.06, 0.04)) * _ramp(0.75 - np.abs(x), 0.05)
        note, cover, mass_echo, beyond = _mass(view, target)
        echo += cover * (mass_echo - echo)
    return _insonify(view, echo * beyond, depth), cover > 0.5, note


def _insonify(view: View, echo: Field, depth: Field) -> Field:
    """Echo strength as the scanner shows it: contact shadows, attenuation, the operator's gain, speckle."""
    rng = view.exposure
    shadow = 1 - rng.uniform(0.1, 0.4) * _ramp(view.noise(rng, 1, 9) - 1.0, 0.8) * _ramp(depth - 0.25, 0.5)
    fading = np.exp(-rng.uniform(0.1, 0.9) * depth) * (1 + 0.1 * view.noise(rng, 5, 1))
    speckle = np.hypot(view.noise(rng, 64, 40), view.noise(rng, 64, 40)) * 0.8
    return np.asarray(rng.uniform(0.7, 1.2) * np.clip(echo, 0.02, None) * shadow * fading * speckle**0.6)


def _mass(view: View, gland: Field) -> tuple[str, Field, Field, Field]:
    """The mass's name, coverage and echo, and the factor by which it changes what lies behind it."""
    rng, (x, y) = view.lesion, view.grid()
    note = ("", "cyst", "fibroadenoma", "carcinoma")[view.finding]
    radius, centre = rng.uniform(0.12, 0.25), view.somewhere_in(gland)
    flatness, rough, edge, echo, behind = {
        "cyst": (rng.uniform(0.75, 1.0), 0.08, 0.03, rng.uniform(0.03, 0.07), rng.uniform(0.3, 0.8)),
        "fibroadenoma": (rng.uniform(0.5, 0.75), 0.15, 0.04, rng.uniform(0.14, 0.24), rng.uniform(0.1, 0.4)),
        "carcinoma": (rng.uniform(0.8, 1.3), 0.4, 0.08, rng.uniform(0.08, 0.18), rng.uniform(-0.7, -0.3)),
    }[note]
    cover = _ramp(view.blob(centre, (radius, radius * flatness), rough), edge)
    wake = _ramp(0.65 * radius - np.abs(x - centre[0]), 0.7 * radius) * _ramp(y - centre[1], radius) * (1 - cover)
    return note, cover, echo + 0.03 * view.noise(rng, 12, 12), 1 + behind * wake


def chest(view: View) -> Drawing:
    """PA chest-radiograph-like image; levels are repeated exposures with another breath."""
    rng, (x, y) = view.anatomy, view.grid()
    breath = rng.normal(0.0, 0.04) + view.exposure.normal(0, 0.025)
    x = (x - rng.normal(0, 0.03) + rng.normal(0, 0.02) * y) / rng.normal(0.98, 0.04) + 0.012 * view.drift(4)
    y = y + rng.normal(0, 0.03) + 0.012 * view.drift(4)
    heart = _ellipse(x, y, (0.14, 0.27), (rng.normal(0.34, 0.03), rng.normal(0.25, 0.02)), 0.6)
    heart = np.maximum(heart, _ellipse(x, y, (0.07, -0.22), (0.13, 0.12)))  # the aortic arch
    both = np.maximum(_lung(rng, -x, y - breath, -0.04), _lung(rng, x, y - breath, 0.04))
    lung = _ramp(both, 0.06) * (1 - _ramp(heart, 0.06))
    body = _ramp(y + 1.0 - 0.5 * np.maximum(np.abs(x) - 0.25, 0) ** 0.8, 0.1) * _ramp(1.02 - np.abs(x), 0.12)
    soft = rng.uniform(0.55, 0.68) + 0.1 * _ramp(y - 0.3, 0.8) - 0.12 * np.abs(x) + 0.12 * _ramp(0.2 - np.abs(x), 0.2)
    image = soft + 0.07 * _ramp(heart, 0.1) - lung * (rng.uniform(0.36, 0.46) - 0.1 * _ramp(y - 0.1, 0.9))
    image += _bones(rng, x, y - 0.5 * breath, lung) + _overlays(view, x, y, lung)
    note, cover = "", np.zeros_like(x)
    if view.finding:
        note, cover, opacity = _opacity(view, lung, x, y)
        image += cover * opacity
    image = np.clip(image * (0.08 + 0.92 * body), 0, 1) ** view.exposure.uniform(0.8, 1.3)
    grain = view.exposure.normal(0, view.exposure.uniform(0.008, 0.02), image.shape)
    return image * view.exposure.uniform(0.9, 1.1) + grain, cover > 0.5, note


def _lung(rng: Generator, w: Field, y: Field, lower: float) -> Field:
    """Signed distance to the lung on the side where ``w`` is positive, positive inside."""
    cage = _ellipse(w, y, (0.42, 0.12), (rng.normal(0.37, 0.015), 0.88), 0.1)
    dome = rng.normal(0.47, 0.02) + lower + 0.9 * (w - rng.normal(0.33, 0.03)) ** 2 - y
    medial = w - 0.12 - 0.05 * np.maximum(y, 0)
    return np.minimum(np.minimum(cage, dome * 0.8), medial)


def _bones(rng: Generator, x: Field, y: Field, lung: Field) -> Field:
    """Ribs behind and in front, clavicles, and the spine."""
    w, spacing = np.abs(x), rng.normal(0.155, 0.01)
    cage = _ramp(_ellipse(w, y, (0.3, 0.15), (0.56, 0.98)), 0.06) * (0.25 + 0.75 * lung)
    behind = (y - 0.5 * (w - 0.22) ** 2 - 0.1 * w) / spacing + rng.uniform(0, 1)
    front = (y + 0.55 * w - 0.35 * w**2) / (1.1 * spacing) + rng.uniform(0, 1)
    strength, bones = rng.uniform(0.05, 0.12), np.zeros_like(x)
    for phase, share, thick in ((behind, 1.0, 0.3), (front, 0.5, 0.36)):
        off = np.abs(phase - np.round(phase))
        bones += cage * share * strength * _ramp(thick - off, 0.16) * (0.6 + 0.4 * (off / thick) ** 2)
    clavicle = y + 0.58 + 0.3 * (w - 0.08) - 0.14 * np.sin(4.2 * w)
    clavicle = _ramp(0.032 - np.abs(clavicle), 0.03) * _ramp(w - 0.08, 0.05) * _ramp(0.8 - w, 0.1)
    return np.asarray(bones + rng.uniform(0.08, 0.16) * clavicle + 0.015 * _ramp(0.1 - w, 0.04) * np.sin(y * 38))


def _overlays(view: View, x: Field, y: Field, lung: Field) -> Field:
    """Vessels, windpipe, breast shadows and stomach gas: healthy things that come and go."""
    rng, w = view.anatomy, np.abs(x)
    hilum = np.exp(-np.hypot(w - 0.2, y + 0.02) / 0.22)
    branches = _waves(rng, np.arctan2(y + 0.02, x - 0.15 * np.sign(x)) + 0.2 * view.drift(9), range(4, 11))
    vessels = _ramp(0.012 - _to_zero(branches), 0.03) * (0.02 + 0.16 * hilum) + 0.1 * hilum
    gas = _ellipse(x, y, (rng.uniform(0.3, 0.45), rng.uniform(0.7, 0.85)), (rng.uniform(0.08, 0.2), 0.09))
    breasts = rng.uniform(0, 0.08) * _ramp(_ellipse(w, y, (0.45, 0.3), (0.36, 0.32)), 0.12)
    windpipe = -0.1 * _ramp(0.05 - w, 0.04) * _ramp(-0.3 - y, 0.2)
    outside = breasts + windpipe - float(rng.choice([0, 0.12, 0.2])) * _ramp(gas, 0.06)
    return lung * vessels + outside + 0.01 * view.drift(20)


def _opacity(view: View, lung: Field, x: Field, y: Field) -> tuple[str, Field, Field]:
    """The finding's name, its coverage in 0 to 1, and how much it adds to the lung beneath."""
    rng = view.lesion
    note = ("", "nodule", "consolidation", "effusion")[view.finding]
    if note != "effusion":
        reach, rough, edge, patchy = rng.uniform(0.055, 0.11), 0.12, 0.04, 0.0
        if note == "consolidation":
            reach, rough, edge, patchy = rng.uniform(0.15, 0.28), 0.35, 0.14, 0.04
        shape = view.blob(view.somewhere_in(lung), (reach, reach * rng.uniform(0.8, 1.3)), rough)
        return note, _ramp(shape, edge) * lung, rng.uniform(0.1, 0.25) + patchy * view.noise(rng, 16, 16)
    w = x * view.disease.choice([-1, 1])
    surface = rng.uniform(0.15, 0.42) - 0.5 * np.maximum(w - 0.4, 0)  # the meniscus climbs along the chest wall
    return note, _ramp(y - surface, 0.1) * lung * (w > 0), np.full_like(lung, rng.uniform(0.18, 0.3))
