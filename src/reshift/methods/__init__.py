"""Methods, one file each, behind one protocol. This literal dict is the registry; importing it imports no torch."""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from reshift.config import nearest
from reshift.errors import UserError

if TYPE_CHECKING:
    from reshift.methods.detector import DetectorClass


class Entry(NamedTuple):
    """Where a method lives and what it is, in one line."""

    location: str
    summary: str


METHODS: dict[str, Entry] = {
    "dmd": Entry("reshift.methods.dmd:DMD", "discriminative mask-guided latent diffusion, exactly as the paper describes it"),
    "brightness": Entry("reshift.methods.trivial:Brightness", "trivial reference: a pixel is as abnormal as it is bright"),
    "area": Entry("reshift.methods.trivial:Area", "trivial reference: an image is as abnormal as its foreground is large"),
}


def get(name: str) -> "DetectorClass":
    """Import the method called ``name``."""
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'{nearest(name, METHODS)}")
    module, _, attribute = METHODS[name].location.partition(":")
    found: DetectorClass = getattr(import_module(module), attribute)
    return found
