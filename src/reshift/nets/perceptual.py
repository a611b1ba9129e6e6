"""Where two images differ to a frozen network: a spatial distance in the manner of LPIPS, on one of two networks."""

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from reshift.nets.features import FeatureNet, feature_net, unit_difference, upsampled_sum
from reshift.nets.lpips import Lpips, lpips_alexnet

Network = Literal["efficientnet-lite0", "lpips-alexnet"]


@lru_cache(maxsize=4)
def network(name: Network, device: torch.device) -> FeatureNet | Lpips:
    """Load a network once per device. It is frozen and named in the config, so no bundle carries its weights."""
    return lpips_alexnet(str(device)) if name == "lpips-alexnet" else feature_net(name, str(device))


def spatial_distance(name: Network, a: Tensor, b: Tensor) -> Tensor:
    """Distance of two images ``(B, C, H, W)`` in [-1, 1] at every pixel, ``(B, 1, H, W)``.

    LPIPS-AlexNet is LPIPS proper, with its fitted weights per channel. EfficientNet-Lite0 has no such weights: there it is
    the mean over three depths of the squared difference of unit feature vectors, between 0 and 4.
    """
    net = network(name, a.device)
    with torch.autocast(a.device.type, enabled=False):  # differences of close features need their digits
        a, b = a.float(), b.float()
        if isinstance(net, Lpips):
            spatial: Tensor = net(a, b).spatial[:, None]
            return spatial
        layers = [unit_difference(f, g).sum(1, keepdim=True) for f, g in zip(net.maps(a), net.maps(b), strict=True)]
        return upsampled_sum(layers, a.shape[-2], a.shape[-1])[:, None] / len(layers)
