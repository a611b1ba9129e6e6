"""How healthy restorations look: RQI, AHI and CACI after Bercea et al. (Nat. Commun. 16:1624, 2025), in our reading.

Their code logs the ingredients but does not combine them, so the combinations here are inferred, and every ingredient is
reported with them. RQI goes by its name only if its distance is LPIPS. With features of another network it is ``rqi_features``,
and AHI, whose features are Inception's in their code, is ``ahi_features``: other measures have other names and columns.
Images are ``(B, C, H, W)`` in [-1, 1]; what cannot be computed is None, never 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from reshift.evaluation.metrics.table import select_metrics
from reshift.nets.features import unit_difference, upsampled_sum
from reshift.nets.lpips import Distance, Lpips

READING = "our reading of Bercea et al. 2025; combinations inferred"
WITHOUT_LPIPS = (
    "LPIPS is not on this machine: there is no RQI but 'RQI (features)', another measure; "
    "get it with: reshift weights pull lpips-alexnet"
)
WINDOW = 7  # SSIM's, scikit-image's default
FOREGROUND = 0.05  # on the 0…1 grey scale; darker pixels count as background
SETS = ("training", "unseen", "abnormal", "restored")  # N, UN, P and RP of AHI

Rows = NDArray[np.float64]  # (n, d)


class ImageFeatures(Protocol):
    """What the indices need of a feature network. Images are ``(B, C, H, W)`` in [-1, 1] with one or three channels."""

    name: str

    def maps(self, x: Tensor) -> list[Tensor]:
        """Feature maps of some layers, each ``(B, c, h, w)``."""

    def vector(self, x: Tensor) -> Tensor:
        """One pooled feature vector per image, ``(B, d)``."""


# ---- distances of two images ---------------------------------------------------------------------------------------------


def perceptual_distance(net: ImageFeatures | Lpips, a: Tensor, b: Tensor) -> Distance:
    """LPIPS itself when ``net`` is ``Lpips``; else its form without fitted heads: the mean over the layers, not the sum."""
    if isinstance(net, Lpips):
        found: Distance = net(a, b)
        return found
    layers = [unit_difference(f, g).sum(1, keepdim=True) for f, g in zip(net.maps(a), net.maps(b), strict=True)]
    scalar = torch.stack([m.mean((1, 2, 3)) for m in layers]).mean(0)
    return Distance(scalar, upsampled_sum(layers, *a.shape[-2:]) / len(layers))


def ssim_map(a: Tensor, b: Tensor) -> Tensor:
    """SSIM at every pixel of images in [0, 1], ``(B, C, H, W)`` → ``(B, H, W)``, channels averaged; float64.

    As scikit-image does by default: a uniform 7×7 window, sample covariance, borders mirrored with the edge repeated.
    """
    a, b = a.double(), b.double()
    n = WINDOW**2
    mean_a, mean_b = _window_mean(a), _window_mean(b)
    var_a, var_b = _window_mean(a * a) - mean_a**2, _window_mean(b * b) - mean_b**2
    cov = (_window_mean(a * b) - mean_a * mean_b) * n / (n - 1)
    c1, c2 = 0.01**2, 0.03**2
    top = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    return (top / ((mean_a**2 + mean_b**2 + c1) * ((var_a + var_b) * n / (n - 1) + c2))).mean(1)


def _window_mean(x: Tensor) -> Tensor:
    r = WINDOW // 2
    x = torch.cat([x[..., :r].flip(-1), x, x[..., -r:].flip(-1)], -1)
    x = torch.cat([x[..., :r, :].flip(-2), x, x[..., -r:, :].flip(-2)], -2)
    return F.avg_pool2d(x, WINDOW, stride=1)


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Mean SSIM per image, ``(B,)``, over the pixels whose window lies inside the image."""
    r = WINDOW // 2
    return ssim_map(a, b)[:, r:-r, r:-r].mean((1, 2))


# ---- distance of two sets ------------------------------------------------------------------------------------------------


def frechet_gaussians(mean_a: Rows, cov_a: Rows, mean_b: Rows, cov_b: Rows) -> float:
    """Squared Fréchet distance of two Gaussians: |μ_a - μ_b|² + tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½).

    The last trace is that of the root of the symmetric √Σ_a Σ_b √Σ_a, by eigen-decomposition. It works for singular
    covariances, so no ridge is added: a ridge ε adds √(ελ) for every direction that only one of the sets spans, which is a
    large change for sets smaller than the dimension.
    """
    values, vectors = np.linalg.eigh(cov_a)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    product = root @ cov_b @ root
    shared = np.sqrt(np.linalg.eigvalsh((product + product.T) / 2).clip(0)).sum()
    return max(0.0, float(((mean_a - mean_b) ** 2).sum() + np.trace(cov_a) + np.trace(cov_b) - 2 * shared))


def frechet_distance(a: Rows, b: Rows) -> float | None:
    """``frechet_gaussians`` of two sets of feature rows; None for fewer than two rows or for features that are not finite."""
    if min(len(a), len(b)) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    if len(a) + len(b) < a.shape[1]:  # the distance lives in the span of the rows, and the span is smaller
        basis, _ = np.linalg.qr(np.concatenate([a, b]).T)
        a, b = a @ basis, b @ basis
    return frechet_gaussians(a.mean(0), np.atleast_2d(np.cov(a.T)), b.mean(0), np.atleast_2d(np.cov(b.T)))


# ---- the three indices ---------------------------------------------------------------------------------------------------


def rqi(restored: Sequence[float], black: Sequence[float]) -> float | None:
    """Restoration quality on normals: mean of clip(1 - d(x, x̂) / d(x, 0), 0, 1); images with d(x, 0) = 0 do not count."""
    return _mean([_clip(1 - d / d0) for d, d0 in zip(restored, black, strict=True) if d0 != 0])


def ahi(abnormal: float | None, restored: float | None, unseen: float | None) -> float | None:
    """Anomaly to healthy, from Fréchet distances to the training normals: clip((P - RP) / (P - UN), 0, 1).

    None when the abnormal images are no farther from the training normals than unseen normals: there is nothing to improve.
    """
    if abnormal is None or restored is None or unseen is None or abnormal <= unseen:
        return None
    return _clip((abnormal - restored) / (abnormal - unseen))


def caci(kept: float, changed: float) -> float:
    """Conservation and correction: the harmonic mean of S_h and 1 - S_a, both cut to [0, 1]."""
    kept, changed = _clip(kept), _clip(changed)
    return 2 * kept * changed / (kept + changed) if kept + changed != 0 else 0.0


def _clip(value: float) -> float:
    return float(np.clip(value, 0.0, 1.0))  # min and max would turn NaN into a bound


def _mean(values: Sequence[float]) -> float | None:
    """Mean, or None when there is nothing or something in it is not finite."""
    mean = float(np.mean(values)) if values else math.nan
    return mean if math.isfinite(mean) else None


class Ingredients(NamedTuple):
    """What the indices of the metrics table are computed from."""

    values: Mapping[str, Sequence[float]]  # per image
    fd: Mapping[str, float | None]  # Fréchet distances to the training normals
    lpips: bool  # whether the distances of ``values`` are LPIPS

    def rqi(self) -> float | None:
        """Restoration quality by LPIPS."""
        return self._quality() if self.lpips else None

    def rqi_features(self) -> float | None:
        """The same formula with another distance, where LPIPS is not there."""
        return None if self.lpips else self._quality()

    def _quality(self) -> float | None:
        return rqi(self.values.get("distance", []), self.values.get("distance_to_black", []))

    def ahi_features(self) -> float | None:
        """Anomaly to healthy."""
        return ahi(self.fd["abnormal"], self.fd["restored"], self.fd["unseen"])

    def caci(self) -> float | None:
        """Conservation and correction, averaged over images."""
        return _mean(self.values.get("caci", []))


@dataclass
class NormativeIndices:
    """Add batches in any order, then read ``result``. It keeps features and values, no images.

    ``net`` gives the features of AHI, ``distance`` (say, LPIPS) the perceptual distance; without it, ``net`` gives both.
    """

    net: ImageFeatures
    distance: Lpips | None = None
    seed: int = 0  # of the draw that cuts the sets of AHI to one size
    features: dict[str, list[Rows]] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)

    def add_normal(self, x: Tensor, restored: Tensor) -> None:
        """Normal test images and their restorations."""
        restored, measure = restored.clamp(-1, 1), self.distance or self.net
        self._add_features("unseen", x)
        self._add_values("mae", (_grey(x) - _grey(restored)).abs().mean((1, 2, 3)))
        self._add_values("ssim", ssim(_grey(x), _grey(restored)))
        self._add_values("distance", perceptual_distance(measure, x, restored).scalar)
        black = torch.full_like(x[:1], -1.0)  # one serves the whole batch
        self._add_values("distance_to_black", perceptual_distance(measure, x, black).scalar)

    def add_training(self, x: Tensor) -> None:
        """Some of the normals the model was trained on."""
        self._add_features("training", x)

    def add_abnormal(self, x: Tensor, restored: Tensor, mask: Tensor | None = None, ignore: Tensor | None = None) -> None:
        """Abnormal test images and their restorations; ``mask`` and ``ignore``, if known, are boolean ``(B, H, W)``.

        What is ignored is neither lesion nor healthy tissue, and no window that touches it says anything about healthy tissue.
        """
        restored = restored.clamp(-1, 1)
        self._add_features("abnormal", x)
        self._add_features("restored", restored)
        if mask is None:
            return
        ignored = torch.zeros_like(mask).bool() if ignore is None else ignore.bool()
        lesion, other = (mask.bool() & ~ignored).to(x.device), (mask.bool() | ignored).to(x.device)
        near = F.max_pool2d(other[:, None].float(), WINDOW, 1, WINDOW // 2)[:, 0] > 0  # every window that touches any of it
        healthy = (_grey(x) > FOREGROUND).any(1) & ~near
        alike, far = ssim_map(_grey(x), _grey(restored)), perceptual_distance(self.distance or self.net, x, restored).spatial
        error = (_grey(x) - _grey(restored)).square().mean(1)
        for i in range(len(x)):
            if lesion[i].any() and healthy[i].any():
                self._compare(healthy[i], lesion[i], {"ssim": alike[i], "distance": far[i].to(x.device), "mse": error[i]})

    def _compare(self, healthy: Tensor, lesion: Tensor, maps: dict[str, Tensor]) -> None:
        """One image's conservation and correction, by SSIM and by the perceptual distance.

        The perceptual version is an ingredient, not an index: its distances have no fixed scale, and deep layers see beyond
        the lesion, so that heavy blur can score higher than a perfect restoration.
        """
        kept = {name: float(values[healthy].mean()) for name, values in maps.items()}
        changed = {name: float(values[lesion].mean()) for name, values in maps.items()}
        for name in maps:
            self._add_values(f"{name}_healthy", [kept[name]])
            self._add_values(f"{name}_lesion", [changed[name]])
        self._add_values("caci", [caci(kept["ssim"], 1 - changed["ssim"])])
        self._add_values("caci_perceptual", [caci(1 - kept["distance"], changed["distance"])])

    def warnings(self) -> list[str]:
        """What a reader of the indices should know."""
        return [] if isinstance(self.distance, Lpips) else [WITHOUT_LPIPS]

    def result(self) -> dict[str, Any]:
        """The indices and all they are made of; safe to write as JSON."""
        sets, means = self._equal_sets(), {name: _mean(values) for name, values in self.values.items()}
        fd = {name: frechet_distance(sets[name], sets["training"]) for name in SETS[1:]}
        parts = Ingredients(self.values, fd, isinstance(self.distance, Lpips))
        return {
            **{metric.name: metric.measure(parts) for metric in select_metrics("normative")},
            "features": self.net.name,
            "reading": READING,
            "ingredients": {
                "distance": (self.distance or self.net).name,
                "normal": {name: means.get(name) for name in ("mae", "ssim", "distance", "distance_to_black")},
                f"FD-{self.net.name}": {**fd, "images_per_set": max(map(len, sets.values()))},
                "abnormal": {
                    f"{name}_{where}": means.get(f"{name}_{where}")
                    for name in ("ssim", "distance", "mse")
                    for where in ("healthy", "lesion")
                },
                "caci_perceptual": means.get("caci_perceptual"),
                "n": {
                    **{name: sum(map(len, self.features.get(name, []))) for name in SETS},
                    "with_lesion_mask": len(self.values.get("caci", [])),
                },
            },
        }

    def _equal_sets(self) -> dict[str, Rows]:
        """Cut the sets to the size of the smallest there is: the Fréchet distance of finite sets grows as they shrink."""
        sets = {name: np.concatenate(rows) for name, rows in self.features.items()}
        smallest = min(map(len, sets.values()), default=0)
        for name, rows in sets.items():  # one seed: sets of one size get one draw, so inputs and restorations stay pairs
            sets[name] = rows[np.random.default_rng(self.seed).permutation(len(rows))[:smallest]]
        return {name: sets.get(name, np.zeros((0, 1))) for name in SETS}

    def _add_features(self, name: str, x: Tensor) -> None:
        self.features.setdefault(name, []).append(self.net.vector(x).double().cpu().numpy())

    def _add_values(self, name: str, values: Tensor | list[float]) -> None:
        self.values.setdefault(name, []).extend(values.tolist() if isinstance(values, Tensor) else values)


def _grey(x: Tensor) -> Tensor:
    """[-1, 1] → [0, 1]."""
    return x / 2 + 0.5
