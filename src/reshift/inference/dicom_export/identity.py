"""Who made a result, and its UIDs: the same images, model and version give the same UIDs, so no archive keeps a result twice."""

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from reshift import __version__

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

MAKER: dict[str, Any] = {
    "manufacturer": "Reshift",
    "manufacturer_model_name": "reshift",
    "software_versions": __version__,
    "device_serial_number": "0",
}
SERIES = {
    "mask": (9001, "Reshift anomaly mask"),
    "map": (9002, "Reshift anomaly map"),
    "overlay": (9003, "Reshift overlay"),
    "report": (9004, "Reshift findings"),
}
NAMESPACE = uuid.UUID("6f7d6a35-6a5e-5f0f-9d0e-3b1a0c5d7e21")  # of the names below; changing it changes every UID


class Identity(NamedTuple):
    """What the UIDs of a case's results follow from."""

    images: tuple[str, ...]  # SOPInstanceUIDs of the sources
    model: str  # hash of weights, settings and calibration
    settings: str = ""  # of this run, as far as they change a result
    anonymised: bool = False

    def uid(self, *parts: object) -> str:
        """A UID made from a name-based UUID (PS3.5 B.2)."""
        name = "\n".join((*self.images, self.model, self.settings, __version__, *(str(part) for part in parts)))
        return f"2.25.{uuid.uuid5(NAMESPACE, name).int}"

    def of(self, kind: str, number: int = 1) -> dict[str, Any]:
        """Series and instance of one result, as highdicom takes them."""
        series, description = SERIES[kind]
        return {
            "series_instance_uid": self.uid(kind, "series"),
            "sop_instance_uid": self.uid(kind, number),
            "series_number": series,
            "series_description": description,
            "instance_number": number,
        }


def identity_of(sources: "Sequence[Dataset]", model: str, settings: str, *, anonymised: bool) -> Identity:
    """The identity of the results of these images."""
    return Identity(tuple(str(source.SOPInstanceUID) for source in sources), model, settings, anonymised)
