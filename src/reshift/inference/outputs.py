"""What a run writes beside heat-maps, overlays and records."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reshift.errors import UserError
from reshift.inference.calibration import Calibration
from reshift.inference.findings.measure import MIN_DIAMETER

if TYPE_CHECKING:
    from reshift.inference.dicom_export.export import Setup


KINDS = ("mask", "report", "map", "overlay")  # of DICOM results


def parse_kinds(text: str) -> tuple[str, ...]:
    """``mask,report`` → the kinds of DICOM results to write."""
    given = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = next((name for name in given if name not in KINDS), None)
    if unknown is not None:
        raise UserError(f"DICOM result '{unknown}' is not known; use one or more of {', '.join(KINDS)}")
    if "report" in given and "mask" not in given:
        raise UserError("the DICOM report points at the segments of the mask; ask for both: mask,report")
    return given


class Outputs(NamedTuple):
    """Settings of findings, overlays, previews and DICOM results."""

    min_diameter: float = MIN_DIAMETER  # millimetres; a region below it is not a finding
    preview: bool = False  # a picture per case, of its most suspicious slices
    key: Path | None = None  # DICOM results are anonymised, and this file tells who is who
    labels: bool = False  # overlays tell score, p-value and threshold
    model: str = ""  # hash of weights, settings and calibration; ``score`` sets it
    kinds: tuple[str, ...] = KINDS  # of DICOM results

    def stamp(self) -> dict[str, Any]:
        """What all results in a folder have in common."""
        return {"min_diameter": self.min_diameter, "anonymised": self.key is not None}

    def refuse_mixed(self, out: Path, earlier: dict[str, Any]) -> None:
        """Refuse to add results to those of a run with other settings; ``earlier`` is its stamp, or what it has of one."""
        least = earlier.get("min_diameter", self.min_diameter)
        if least != self.min_diameter:
            raise UserError(f"{out}: holds findings of at least {least} mm; use --min-diameter {least}, or choose another --out")
        if earlier.get("anonymised", self.key is not None) != (self.key is not None):
            kind = "anonymised results" if earlier["anonymised"] else "results that are not anonymised"
            raise UserError(f"{out}: holds {kind}; choose another --out, so that the two are never mixed")

    def dicom_setup(self, calibration: Calibration) -> "Setup":
        """What DICOM results are made with."""
        from reshift.inference.dicom_export.anonymise import open_key
        from reshift.inference.dicom_export.export import Setup

        key = open_key(self.key) if self.key is not None else None
        threshold, scale = calibration.reference.pixel_threshold, calibration.heat_scale
        return Setup(threshold, scale, self.model, self.min_diameter, key, self.kinds)


DEFAULTS = Outputs()
