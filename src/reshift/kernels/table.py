"""The table of fast twins, and ``accelerate``, which puts them in place."""

import os
from collections.abc import Collection
from importlib import import_module
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from reshift.errors import UserError
from reshift.kernels.available import VARIABLE, Twin, runs_on, switched_on
from reshift.nets.classifier import Classifier
from reshift.nets.norm import BatchNormReLU, BatchNormReLUPool, GroupNorm, GroupNormSiLU
from reshift.nets.unet import Attention, ResBlock, UNet
from reshift.nets.vqvae import VQVAE, Decoder


class Row(NamedTuple):
    """A plain layer and its twin, which is imported only where it is used: most need Triton."""

    name: str  # what RESHIFT_KERNELS and ``skip`` call it
    plain: type[nn.Module]
    twin: str  # module.Class
    # Networks whose layers are replaced; torch's own layers only where it has been measured to help. Most twins have no second
    # derivative, which a network with a gradient penalty needs.
    inside: tuple[type[nn.Module], ...] = (nn.Module,)
    cpu: bool = False  # also worth it on a CPU

    def load(self) -> type[Twin]:
        """Import the twin's class."""
        module, _, name = self.twin.partition(".")
        found: type[Twin] = getattr(import_module(f"reshift.kernels.{module}"), name)
        return found


TWINS = (  # of two rows for one layer the first that fits counts
    Row("windows", Decoder, "windows.WindowedDecoder", cpu=True),
    Row("nearest_code", VQVAE, "nearest_code.FusedVQVAE"),
    Row("attention", Attention, "attention.FusedAttention"),
    Row("group_norm", GroupNorm, "group_norm.FusedGroupNorm"),
    Row("group_norm", GroupNormSiLU, "group_norm.FusedGroupNormSiLU"),
    Row("batch_norm_relu", BatchNormReLU, "batch_norm_relu.FusedBatchNormReLU"),
    Row("batch_norm_relu_pool", BatchNormReLUPool, "batch_norm_relu_pool.FusedBatchNormReLUPool"),
    Row("thin_conv", nn.Conv2d, "thin_conv.ThinConv2d", inside=(VQVAE, Classifier)),
    Row("thin_conv", nn.ConvTranspose2d, "thin_conv.ThinConvTranspose2d", inside=(VQVAE,)),
    Row("linear", nn.Conv2d, "linear.PointwiseConv2d", inside=(UNet, VQVAE, Attention)),
    Row("linear", nn.Linear, "linear.FusedLinear", inside=(UNet, Classifier)),
    Row("conv", nn.Conv2d, "conv.FusedConv2d", inside=(UNet, Classifier)),
    Row("conv", ResBlock, "conv.FusedResBlock"),
)
OTHERS = ("graphs", "streams", "bf16_weights", "adamw")  # the fast parts that are not layers
NAMES = (*dict.fromkeys(row.name for row in TWINS), *OTHERS)

Module = TypeVar("Module", bound=nn.Module)


def accelerate(module: Module, device: torch.device, skip: Collection[str] = ()) -> Module:
    """Replace, in place, every layer of ``module`` that has a fast twin for ``device``, except the twins named in ``skip``."""
    _check_names()
    for row in TWINS:
        if row.name in skip or not switched_on(row.name) or not (row.cpu or runs_on(device)):
            continue
        twin = row.load()
        networks = [network for network in module.modules() if isinstance(network, row.inside)]
        for layer in {layer for network in networks for layer in network.modules()}:
            if type(layer) is row.plain and twin.replaces(layer):
                layer.__class__ = twin  # type: ignore[assignment]
    return module


def _check_names() -> None:
    wish = os.environ.get(VARIABLE) or "auto"
    unknown = sorted(set(wish.split(",")) - {*NAMES, "auto", "off"})
    if unknown:
        raise UserError(f"{VARIABLE}: unknown name '{unknown[0]}'; use auto, off, or parts to leave out: {', '.join(NAMES)}")
