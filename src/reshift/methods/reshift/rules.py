"""What the training normals decide where a setting is "auto". How each number was found: docs/research.md."""

from typing import Any

from reshift.methods.detector import Normals
from reshift.methods.reshift.settings import EMBEDDED, OVERALL_SHARE, ReshiftSettings
from reshift.weights.find import available

FEW = 100  # with so many normals, "overall" has half of its share in the score
WHOLE = 2.0  # images per subject; with fewer, an image shows a whole organ, not a slice of it
MIN_SYMMETRY = 0.25  # brains have 0.3 and more, chest X-rays and breast ultrasound less than 0.2
UNIFORM = 0.3  # FLAIR has 0.22, T1 0.44 to 0.64, breast ultrasound 0.77, chest X-rays 0.57
BRIGHTER = 1.25
CENTRING = 0.5
ALIKE = 0.12  # ARC has 0.07, IXI (one site) 0.11, NIH 0.18, LGG 0.21, BUSI 0.28


def decide(settings: ReshiftSettings, normals: Normals) -> dict[str, Any]:
    """The values of settings that are "auto"."""
    # Slices differ as a whole by where they lie.
    whole = normals.images_per_subject < WHOLE and available(EMBEDDED)
    # Normal tissue of one grey, with many darker pixels (fluid, the rim) and few brighter ones: brightness is what tells.
    bright = normals.middle <= UNIFORM and normals.bright_side < 1.0
    values: dict[str, Any] = {
        "overall": "on" if whole else "off",
        # Few normals do not say how normals vary as a whole, and odd ones among them set the threshold.
        "overall_share": round(OVERALL_SHARE * normals.images / (normals.images + FEW), 3),
        "symmetry": "on" if normals.symmetry >= MIN_SYMMETRY else "off",
        "polarity": "likely bright" if bright else "none",
        "exposure": BRIGHTER if bright else 1.0,
        "centring": CENTRING,
        "photometry": "mild" if normals.grey_spread <= ALIKE else "strong",
    }
    return {name: value for name, value in values.items() if getattr(settings, name) == "auto"}
