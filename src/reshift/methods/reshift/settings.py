"""Settings of method ``reshift``. How each was chosen: docs/research.md."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from reshift.config import AutoOrFactor, AutoOrShare, Frozen, nearest
from reshift.methods.dmd.settings import DMDSettings
from reshift.weights.find import available

SourceName = Literal["offset", "gain", "swap", "mix", "texture", "tone", "restoration"]
WitnessName = Literal["plain", "featured", "memory", "denoising", "tail", "overall", "symmetry"]
Weights = dict[WitnessName, Annotated[float, Field(gt=0.0)]]
Widths = Annotated[tuple[Annotated[int, Field(ge=8, le=4096, multiple_of=8)], ...], Field(min_length=3, max_length=10)]
STRONG = ("tinyvit-sam", "dinov2-small")  # feature networks that find more than the embedded one
EMBEDDED = "efficientnet-lite0"
NEED_FEATURES = ("featured", "memory", "overall", "symmetry")
PER_NETWORK = ("featured", "memory", "symmetry")  # witnesses that there is one of for every feature network
OVERALL_SHARE = 0.8  # with endless normals
LIKELY = 1 / 2  # of the weight of a declared polarity
UNDECLARED = ("auto", "none")
BY_RULE = ("overall", "symmetry")  # witnesses with a setting of their own


class ReshiftSettings(Frozen):
    """Witnesses, what they are trained on, and how they become a heat-map and a score."""

    witnesses: tuple[WitnessName, ...] = ("featured", "memory", "denoising")
    # Witnesses, or feature networks, that are trained but not heard: what each is worth, without training again.
    silent: tuple[str, ...] = ()
    # bright or dark: lesions are known to be so; adds the witness "tail". likely bright: it has half of its weight in the
    # heat-map, and no say of its own in the score. auto: that, where tissue is nearly uniform and its bright side is the shorter
    # one, as on FLAIR; else none.
    polarity: Literal["auto", "none", "likely bright", "bright", "dark"] = "auto"
    # Whether the witness "overall" is asked. auto: where most subjects have one image, so that an image shows a whole organ.
    overall: Literal["auto", "on", "off"] = "auto"
    symmetry: Literal["auto", "on", "off"] = "auto"  # likewise; auto: where the normals are symmetric
    # Grey values are multiplied by this before an image is judged, but not before normals are learned: above 1, what is brighter
    # than normals stands out more, and what is darker less. auto: 1.25 where lesions are likely bright, else 1.
    exposure: AutoOrFactor = "auto"
    folds: int = Field(4, ge=1, le=64)  # of the subjects; every witness has a part that has not seen a fold
    # Networks by name. auto: the best ones at hand; embedded: the small one that comes with the extra "features".
    features: tuple[str, ...] | Literal["auto", "embedded", "off"] = "auto"

    steps: int = Field(1000, ge=0)  # training steps of plain and featured discriminators
    widths: Widths = (32, 64, 128, 256)
    mirror: bool = True  # the discriminators also see the mirror image: a body is nearly symmetric
    denoising_steps: int = Field(1000, ge=0)
    denoising_widths: Widths = (32, 64, 128, 256, 256)
    denoising_grain: Literal[1, 2, 4] = 1  # the denoiser sees blocks of so many pixels a side as one, for speed
    noise_std: float = Field(0.4, ge=0.0)  # on [-1, 1], of the noise that the denoiser learns to remove
    noise_grid: int = Field(16, ge=2, le=1024)  # its points per side

    sources: tuple[SourceName, ...] = ("offset", "gain", "swap", "mix", "texture", "tone")
    # Radius of a blob, as a share of the side. ``smallest`` is for 128 pixels or fewer: larger images show smaller lesions.
    smallest: float = Field(0.015, gt=0.0)
    largest: float = Field(0.35, gt=0.0)
    blobs: int = Field(4, ge=1, le=16)  # per image, at most
    untouched: float = Field(0.15, ge=0.0, lt=1.0)  # share of images without a shift
    # Changes of brightness, contrast and sharpness that are not shifts. auto: strong where the grey of normals differs much from
    # subject to subject; else mild, and fainter lesions are found.
    photometry: Literal["auto", "mild", "strong"] = "auto"
    late_noise: float = Field(0.2, ge=0.0)  # on [-1, 1], std at most of noise after the shifts, with some blur; 0: neither
    marks: float = Field(0.3, ge=0.0, le=1.0)  # share of images with painted text or calipers, which are not shifts
    strokes: float = Field(0.5, ge=0.0)  # thin lines brighter by this, on [-1, 1], are removed first; 0: none
    degrees: float = Field(8.0, ge=0.0)  # augmentation: rotation, shift, zoom
    move: float = Field(0.06, ge=0.0)
    zoom: float = Field(0.12, ge=0.0, lt=1.0)

    bank: int = Field(8192, ge=2, le=1_000_000)  # remembered patches of normals, per network
    sample: int = Field(100_000, ge=1, le=10_000_000)  # patches the bank is chosen from, at most
    blur: float = Field(2.3, ge=0.0, le=100.0)  # σ of the blur of the distance, pixels of a 128-pixel map

    # Of kinds of witnesses in the heat-map; 1 if not named. Who declares a polarity knows more than most witnesses do.
    weights: Weights = Field({"featured": 4.0, "symmetry": 2.0, "tail": 6.0})
    score_weights: Weights = Field({})  # likewise in the score
    map_share: float = Field(0.5, ge=0.0, le=1.0)  # of the fused map in the image score; the rest is the witnesses'
    # Of the witness "overall" in the image score, where it is asked. auto: most, but less where normals are few.
    overall_share: AutoOrShare = "auto"
    # Share of its mean inside the anatomy that a heat-map is freed of; if any, the score is freed of all of it. An image that is
    # a little unlike normals everywhere lies elsewhere or comes from another scanner. auto: half.
    centring: AutoOrShare = "auto"
    flips: bool = True  # trained witnesses also judge the mirrored image
    top: float = Field(0.005, gt=0.0, le=1.0)  # share of the pixels, the highest, that a score averages
    spreads: float = Field(3.0, gt=0.0)  # a pixel is abnormal so many spreads of normal pixels above their mean
    dmd: DMDSettings = DMDSettings(stage1_epochs=100, stage2_epochs=100)

    @model_validator(mode="before")
    @classmethod
    def _resolved(cls, values: Any) -> Any:
        """Spell out what ``auto`` and ``embedded`` stand for, so that a bundle says which networks it was trained with."""
        if isinstance(values, dict) and "members" in values:
            raise ValueError("these settings are of the first version of this method, which is no more; train again")
        if isinstance(values, dict) and "memory_weight" in values:  # a bundle from before all kinds could have weights
            memory, featured = values["memory_weight"], values.get("featured_weight", 1.0)
            values = {k: v for k, v in values.items() if k not in ("memory_weight", "featured_weight")}
            values |= {"weights": {"memory": memory, "featured": featured}, "score_weights": {"memory": memory}}
        wish = values.get("features", "auto") if isinstance(values, dict) else None
        if wish not in ("auto", "embedded"):
            return values
        strong = tuple(name for name in STRONG if wish == "auto" and available(name))
        return {**values, "features": strong or ((EMBEDDED,) if available(EMBEDDED) else "off")}

    @model_validator(mode="after")
    def _consistent(self) -> "ReshiftSettings":
        for name in ("witnesses", "sources", "networks"):
            given = getattr(self, name)
            if len(set(given)) < len(given) or not (given or name == "networks"):
                raise ValueError(f"{name} {list(given)} must name at least one, and none twice")
        if self.smallest > self.largest:
            raise ValueError(f"smallest {self.smallest} exceeds largest {self.largest}")
        if "tail" in self.witnesses and self.polarity in UNDECLARED:
            raise ValueError('the witness \'tail\' needs polarity = "bright" or "dark"')
        if mistaken := [name for name in self.witnesses if name in BY_RULE]:
            raise ValueError(f'the witness "{mistaken[0]}" has a setting of its own: {mistaken[0]} = "on"')
        if unknown := [name for name in self.silent if name not in (*get_args(WitnessName), *self.networks)]:
            known = (*self.present, *self.networks)
            raise ValueError(f"silent names '{unknown[0]}', which is no witness or network{nearest(unknown[0], known)}")
        if not set(self.heard) - {"overall"}:
            raise ValueError("no witness is left: name more witnesses, fewer silent ones, or install the features")
        return self

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the feature networks."""
        return self.features if isinstance(self.features, tuple) else ()

    @property
    def map_weights(self) -> dict[str, float]:
        """The weights of kinds in the heat-map. Who declares a polarity knows more than a rule does."""
        weights = {str(kind): weight for kind, weight in self.weights.items()}
        if self.polarity == "likely bright":
            weights["tail"] = weights.get("tail", 1.0) * LIKELY
        return weights

    @property
    def share_of_overall(self) -> float:
        """Of the witness "overall" in the score."""
        return OVERALL_SHARE if self.overall_share == "auto" else self.overall_share

    @property
    def share_of_mean(self) -> float:
        """That the heat-map is freed of; none in bundles from before there was such a setting."""
        return 0.0 if self.centring == "auto" else self.centring

    @property
    def top_weights(self) -> dict[str, float]:
        """The weights of kinds in the score."""
        weights = {str(kind): weight for kind, weight in self.score_weights.items()}
        return {**weights, "tail": 0.0} if self.polarity == "likely bright" else weights

    @property
    def present(self) -> tuple[WitnessName, ...]:
        """The witnesses that are built. Without features a plain discriminator stands for those that need them."""
        named: list[WitnessName] = [name for name in self.witnesses if self.networks or name not in NEED_FEATURES]
        if "featured" in self.witnesses and not self.networks and "plain" not in named:
            named.insert(0, "plain")
        tail = ("tail",) if self.polarity not in UNDECLARED and "tail" not in named else ()
        return (*named, *tail, *(name for name in BY_RULE if getattr(self, name) == "on" and self.networks))

    @property
    def heard(self) -> tuple[WitnessName, ...]:
        """Those that count."""
        deaf = set(self.networks) <= set(self.silent)  # no network is heard
        return tuple(name for name in self.present if name not in self.silent and not (deaf and name in PER_NETWORK))
