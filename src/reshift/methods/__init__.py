"""Methods, one file each, behind one protocol. This literal dict is the registry; importing it imports no torch."""

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
    """Where a method lives and what it is, in one line."""

    location: str  # module below reshift.methods, and class
    summary: str
    caveat: str = ""  # why a method is not what its name says; it then has a † behind the name in every table


METHODS: dict[str, Entry] = {
    "reshift": Entry("reshift.method:Reshift", "dense reconstruction-shift discrimination with pretrained features"),
    "dmd": Entry("dmd.method:DMD", "discriminative mask-guided latent diffusion, exactly as the paper describes it"),
    "ae": Entry("ae:AE", "convolutional autoencoder"),
    "vae": Entry("vae:VAE", "variational autoencoder"),
    "fanogan": Entry("fanogan:FAnoGAN", "f-AnoGAN: WGAN-GP and an encoder into its latent space"),
    "dae": Entry("dae:DAE", "denoising autoencoder: a U-Net that removes coarse noise"),
    "ddpm": Entry("diffusion.ddpm:DDPM", "image-space diffusion: noise to t = 250 and back"),
    "anoddpm": Entry("diffusion.anoddpm:AnoDDPM", "AnoDDPM: the same with simplex noise"),
    "autoddpm": Entry("diffusion.autoddpm:AutoDDPM", "AutoDDPM: mask what diffusion changes, stitch, resample"),
    "thor-gaussian": Entry("diffusion.thor:ThorGaussian", "THOR: a chain harmonised with the input, Gaussian noise"),
    "thor-simplex": Entry("diffusion.thor:ThorSimplex", "THOR: a chain harmonised with the input, simplex noise"),
    "diffuse": Entry(
        "diffusion.diffuse:Diffuse",
        "Dif-fuse†: edit where the image surprises, keep the rest",
        "diffuse† is a stand-in: Dif-fuse itself learns where to edit from labelled diseased images, which no other method sees",
    ),
    "cddpm": Entry("diffusion.cddpm:CDDPM", "cDDPM: one-step restoration conditioned on an image code"),
    "madad": Entry("diffusion.madad:MADAD", "MAD-AD: masked latent diffusion that finds and repairs its own masks"),
    "patchcore": Entry("patchcore:PatchCore", "PatchCore: nearest neighbours of frozen features"),
    "brightness": Entry("trivial:Brightness", "trivial reference: a pixel is as abnormal as it is bright"),
    "area": Entry("trivial:Area", "trivial reference: an image is as abnormal as its foreground is large"),
}


VARIABLE = "RESHIFT_METHODS"


def caveat(name: str) -> str | None:
    """Why the method is not what its name says; None for most, and for methods of others."""
    return (METHODS[name].caveat or None) if name in METHODS else None


def label(name: str) -> str:
    """The name as tables show it, with its † where there is a caveat."""
    return f"{name}†" if caveat(name) else name


class ForeignMethodError(UserError):
    """A method outside this package that cannot be used, or that nobody has allowed."""


def get(name: str, *, given: bool = False) -> "DetectorClass":
    """Import the method called ``name``, or the one at ``module:Class``.

    A location may come from a file, such as a stranger's bundle, and importing runs code. So a location is followed only if the
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
    missing = [part for part in ("Settings", "profiles", "stages", "predict", "state_dict") if not hasattr(found, part)]
    if missing:
        raise ForeignMethodError(f"method '{location}' is no method: it lacks {', '.join(missing)}; see docs/add-a-method.md")
    return cast("DetectorClass", found)


def _import(module: str, location: str) -> ModuleType:
    """Import from where Python looks, and else from the current folder, which the path of a console script lacks."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)  # at the end: a file here must not stand in for a package
    try:
        return import_module(module)
    except Exception as err:  # it is the user's code: anything may happen
        remedy = "; install it, or run in the folder that holds it" if isinstance(err, ModuleNotFoundError) else ""
        why = reason(err).splitlines()[0]
        raise ForeignMethodError(f"method '{location}': importing '{module}' failed ({why}){remedy}") from err
    finally:
        if added:
            sys.path.remove(here)
