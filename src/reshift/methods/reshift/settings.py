"""Settings of method ``reshift``. What each was chosen by: docs/research.md."""

from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from reshift.config import Frozen
from reshift.methods.dmd.settings import DMDSettings
from reshift.nets.features import EXTRA

SourceName = Literal["offset", "gain", "swap", "mix", "texture", "restoration"]


class ReshiftSettings(Frozen):
    """What is discriminated, by what network, and how the two witnesses become a map and a score."""

    steps: int = Field(800, ge=0)  # of the discriminators
    members: int = Field(4, ge=1)  # discriminators, each trained without its own fold of the subjects; logits are averaged
    widths: Annotated[tuple[Annotated[int, Field(ge=8, multiple_of=8)], ...], Field(min_length=4)] = (32, 64, 128, 256)
    sources: tuple[SourceName, ...] = ("offset", "gain", "swap", "mix", "texture", "restoration")
    smallest: float = Field(0.023, gt=0.0)  # radius of a blob, in sides of the image
    largest: float = Field(0.35, gt=0.0)
    untouched: float = Field(0.15, ge=0.0, lt=1.0)  # share of images without a shift
    marks: float = Field(0.3, ge=0.0, le=1.0)  # share of images with text or calipers painted in, which are no shift
    strokes: float = Field(0.5, ge=0.0)  # of the range of 2: thin lines brighter by this are taken off first; 0 leaves all
    degrees: float = Field(8.0, ge=0.0)  # augmentation
    move: float = Field(0.06, ge=0.0)
    zoom: float = Field(0.12, ge=0.0, lt=1.0)
    mirror: bool = False  # show the discriminators each image beside its mirror image: a brain has two like halves
    features: Literal["auto", "efficientnet-lite0", "off"] = "auto"  # auto: what is installed; the bundle says which it was
    side: int = Field(224, ge=64, multiple_of=32)  # of the image as the feature network sees it, pixels
    bank: int = Field(8192, ge=2)  # patches of normals remembered
    sample: int = Field(100_000, ge=1)
    blur: float = Field(2.3, ge=0.0)  # σ of the distance map, pixels of a 128-pixel map
    distance_weight: float = Field(1.0, ge=0.0)  # of the distance, beside 1 for the discriminators; see docs/research.md
    flips: bool = True  # average with the mirrored image
    top: float = Field(0.005, gt=0.0, le=1.0)  # share of the pixels, the highest, that the score is the mean of
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
            raise ValueError(f"sources {list(self.sources)} must be some, and each once")
        if self.smallest > self.largest:
            raise ValueError(f"smallest {self.smallest} exceeds largest {self.largest}")
        return self
