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
    mark: str = ""  # put behind the name in every table, where a method is not quite what its name says


METHODS: dict[str, Entry] = {
    "dmd": Entry("reshift.methods.dmd:DMD", "discriminative mask-guided latent diffusion, exactly as the paper describes it"),
    "ae": Entry("reshift.methods.ae:AE", "convolutional autoencoder"),
    "vae": Entry("reshift.methods.vae:VAE", "variational autoencoder"),
    "fanogan": Entry("reshift.methods.fanogan:FAnoGAN", "f-AnoGAN: WGAN-GP and an encoder into its latent space"),
    "dae": Entry("reshift.methods.dae:DAE", "denoising autoencoder: a U-Net that removes coarse noise"),
    "ddpm": Entry("reshift.methods.ddpm:DDPM", "image-space diffusion: noise to t = 250 and back"),
    "anoddpm": Entry("reshift.methods.anoddpm:AnoDDPM", "AnoDDPM: the same with simplex noise"),
    "autoddpm": Entry("reshift.methods.autoddpm:AutoDDPM", "AutoDDPM: mask what diffusion changes, stitch, resample"),
    "thor-gaussian": Entry("reshift.methods.thor:ThorGaussian", "THOR: a chain harmonised with the input, Gaussian noise"),
    "thor-simplex": Entry("reshift.methods.thor:ThorSimplex", "THOR: a chain harmonised with the input, simplex noise"),
    "diffuse": Entry(
        "reshift.methods.diffuse:Diffuse", "Dif-fuse†, a stand-in that needs no labels: edit where the image surprises", "†"
    ),
    "cddpm": Entry("reshift.methods.cddpm:CDDPM", "cDDPM: one-step restoration conditioned on an image code"),
    "madad": Entry("reshift.methods.madad:MADAD", "MAD-AD: masked latent diffusion that finds and repairs its own masks"),
    "patchcore": Entry("reshift.methods.patchcore:PatchCore", "PatchCore: nearest neighbours of frozen features"),
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
