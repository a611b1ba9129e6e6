"""Settings of method ``reshift``. How each was chosen: docs/research.md."""

from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from reshift.config import Frozen
from reshift.methods.dmd.settings import DMDSettings
from reshift.nets.features import EXTRA

SourceName = Literal["offset", "gain", "swap", "mix", "texture", "restoration"]
Widths = Annotated[tuple[Annotated[int, Field(ge=8, le=4096, multiple_of=8)], ...], Field(min_length=4, max_length=10)]


class ReshiftSettings(Frozen):
    """Shifts, networks, and how the two witnesses become a heat-map and a score."""

    steps: int = Field(800, ge=0)  # training steps of the discriminators
    members: int = Field(4, ge=1, le=64)  # discriminators, each trained without its own fold of the subjects
    widths: Widths = (32, 64, 128, 256)
    sources: tuple[SourceName, ...] = ("offset", "gain", "swap", "mix", "texture", "restoration")
    smallest: float = Field(0.023, gt=0.0)  # radius of a blob, as a share of the image's side
    largest: float = Field(0.35, gt=0.0)
    untouched: float = Field(0.15, ge=0.0, lt=1.0)  # share of images without a shift
    marks: float = Field(0.3, ge=0.0, le=1.0)  # share of images with painted text or calipers, which are not shifts
    strokes: float = Field(0.5, ge=0.0)  # thin lines brighter by this, on [-1, 1], are removed first; 0: none
    degrees: float = Field(8.0, ge=0.0)  # augmentation: rotation, shift, zoom
    move: float = Field(0.06, ge=0.0)
    zoom: float = Field(0.12, ge=0.0, lt=1.0)
    mirror: bool = False  # the discriminators also see the mirror image: a brain is symmetric
    features: Literal["auto", "efficientnet-lite0", "off"] = "auto"  # auto: if installed; the bundle keeps the choice
    side: int = Field(224, ge=64, le=1024, multiple_of=32)  # pixels, of the feature network's input
    bank: int = Field(8192, ge=2, le=1_000_000)  # remembered patches of normals
    sample: int = Field(100_000, ge=1, le=10_000_000)  # patches the bank is chosen from, at most
    blur: float = Field(2.3, ge=0.0, le=100.0)  # σ of the blur of the distance, pixels of a 128-pixel map
    distance_weight: float = Field(1.0, ge=0.0)  # of the distance; the discriminators have 1
    flips: bool = True  # average with the mirrored image
    top: float = Field(0.005, gt=0.0, le=1.0)  # share of the pixels, the highest, that the score averages
    dmd: DMDSettings = DMDSettings(stage1_epochs=100, stage2_epochs=100)

    @model_validator(mode="before")
    @classmethod
    def _installed(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("features", "auto") == "auto":
            values = {**values, "features": "efficientnet-lite0" if find_spec(EXTRA) else "off"}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "ReshiftSettings":
        if not self.sources or len(set(self.sources)) < len(self.sources):
            raise ValueError(f"sources {list(self.sources)} must name at least one source, and none twice")
        if self.smallest > self.largest:
            raise ValueError(f"smallest {self.smallest} exceeds largest {self.largest}")
        return self
