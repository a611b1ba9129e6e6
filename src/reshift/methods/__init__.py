"""The methods, one file each, behind one base class. ``METHODS`` is the registry; importing it does not import torch.

May import core, nets and config.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from reshift.config import nearest
from reshift.errors import UserError, reason

if TYPE_CHECKING:
    from reshift.methods.detector import DetectorClass


class Entry(NamedTuple):
    """One method: where it is defined and what it does."""

    location: str  # module below reshift.methods, and class
    summary: str
    caveat: str = ""  # why the method differs from what its name says; tables then show the name with a †
    no_export: str = ""  # why 'reshift export' cannot take it; most can be exported


_CHAIN = "its chain of denoising steps would be as many copies of its network in one graph"
METHODS: dict[str, Entry] = {
    "reshift": Entry("reshift.method:Reshift", "dense reconstruction-shift discrimination with pretrained features"),
    "dmd": Entry("dmd.method:DMD", "the paper's method: discriminative mask-guided latent diffusion"),
    "ae": Entry("autoencoder:AE", "convolutional autoencoder; sees 64×64 pixels, its maps are enlarged"),
    "vae": Entry("autoencoder:VAE", "variational autoencoder; sees 64×64 pixels, its maps are enlarged"),
    "fanogan": Entry("fanogan:FAnoGAN", "f-AnoGAN: WGAN-GP and an encoder into its latent space"),
    "dae": Entry("dae:DAE", "denoising autoencoder: a U-Net that removes coarse noise"),
    "ddpm": Entry("diffusion.ddpm:DDPM", "image-space diffusion: noise to t = 250 and back", no_export=_CHAIN),
    "anoddpm": Entry("diffusion.anoddpm:AnoDDPM", "AnoDDPM: DDPM with simplex noise", no_export=_CHAIN),
    "autoddpm": Entry("diffusion.autoddpm:AutoDDPM", "AutoDDPM: mask what diffusion changes, stitch, resample", no_export=_CHAIN),
    "thor-gaussian": Entry(
        "diffusion.thor:ThorGaussian", "THOR: a chain harmonised with the input, Gaussian noise", no_export=_CHAIN
    ),
    "thor-simplex": Entry(
        "diffusion.thor:ThorSimplex", "THOR: a chain harmonised with the input, simplex noise", no_export=_CHAIN
    ),
    "diffuse": Entry(
        "diffusion.diffuse:Diffuse",
        "Dif-fuse†: edit what the network would change most, keep the rest",
        "diffuse† is a stand-in: Dif-fuse learns where to edit from labelled diseased images, which no other method sees; here "
        "the region is what the same DDPM would change most",
        _CHAIN,
    ),
    "cddpm": Entry("diffusion.cddpm:CDDPM", "cDDPM: one-step restoration conditioned on an image code"),
    "madad": Entry(
        "diffusion.madad:MADAD", "MAD-AD: masked latent diffusion that finds and repairs its own masks", no_export=_CHAIN
    ),
    "patchcore": Entry("patchcore:PatchCore", "PatchCore: nearest neighbours of frozen features"),
    "brightness": Entry("trivial:Brightness", "trivial reference: a pixel is as abnormal as it is bright"),
    "area": Entry("trivial:Area", "trivial reference: an image is as abnormal as its foreground is large"),
}


VARIABLE = "RESHIFT_METHODS"


def caveat(name: str) -> str | None:
    """Why the method differs from what its name says; None for most, and for methods outside this package."""
    return (METHODS[name].caveat or None) if name in METHODS else None


def label(name: str) -> str:
    """The name as tables show it, with a † if there is a caveat."""
    return f"{name}†" if caveat(name) else name


class ForeignMethodError(UserError):
    """A method outside this package that cannot be used, or that the user has not allowed."""


def get(name: str, *, given: bool = False) -> "DetectorClass":
    """Import the method called ``name``, or the one at ``module:Class``.

    A location may come from a file, such as a downloaded bundle, and importing runs code. So a location is imported only if the
    user has ``given`` it, has named it in ``RESHIFT_METHODS``, or has imported its module already.
    """
    if ":" in name:
        return _foreign(name, given=given)
    if name not in METHODS:
        raise UserError(f"unknown method '{name}'{nearest(name, METHODS)}")
    module, _, attribute = METHODS[name].location.partition(":")
    found: DetectorClass = getattr(import_module(f"reshift.methods.{module}"), attribute)
    return found


def _foreign(location: str, *, given: bool) -> "DetectorClass":
    from reshift.methods.detector import Detector

    module, _, attribute = location.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ForeignMethodError(f"method {location!r}: write it as package.module:Class")
    if not (given or module in sys.modules or location in os.environ.get(VARIABLE, "").replace(",", " ").split()):
        raise ForeignMethodError(
            f"method '{location}' is code outside reshift, and only a file names it; if you trust it, set {VARIABLE}={location}"
        )
    found: Any = vars(_import(module, location)).get(attribute)  # getattr could make a lazy module import more
    if not isinstance(found, type):
        raise ForeignMethodError(f"method '{location}': module '{module}' has no class '{attribute}'")
    if not issubclass(found, Detector):
        raise ForeignMethodError(f"method '{location}' is not a subclass of Detector; see docs/add-a-method.md")
    if missing := [part for part in ("Settings", "profiles") if not hasattr(found, part)]:
        raise ForeignMethodError(f"method '{location}' has no {' and no '.join(missing)}; see docs/add-a-method.md")
    return cast("DetectorClass", found)


def _import(module: str, location: str) -> ModuleType:
    """Import from Python's path or, failing that, from the current folder, which a console script's path does not have."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)  # at the end: a file here must not replace a package
    try:
        return import_module(module)
    except Exception as err:  # the user's code may raise anything
        remedy = "; install it, or run in the folder that holds it" if isinstance(err, ModuleNotFoundError) else ""
        why = reason(err).splitlines()[0]
        raise ForeignMethodError(f"method '{location}': importing '{module}' failed ({why}){remedy}") from err
    finally:
        if added:
            sys.path.remove(here)
