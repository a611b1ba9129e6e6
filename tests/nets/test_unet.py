"""The denoiser's parts: every block gets its own offset from the time step, no bias is redundant, everything learns."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from reshift.nets.masked_unet import MaskedUNet
from reshift.nets.unet import ResBlock, UNet, timestep_embedding


def grown(net: nn.Module) -> nn.Module:
    """Zero-initialised branches would hide differences."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.1)
    return net


@pytest.mark.parametrize("make", [lambda: UNet(3, (8, 16), 2), lambda: MaskedUNet(3, (8, 16), 2).trunk], ids=["plain", "masked"])
def test_every_block_gets_its_own_part_of_the_time_offsets(make: Callable[[], UNet]) -> None:
    torch.manual_seed(0)
    net, told = make(), dict[str, Tensor]()
    grown(net)
    for name, block in net.named_modules():
        if isinstance(block, ResBlock):
            block.register_forward_pre_hook(lambda _block, given, name=name: told.update({name: given[1]}))
    z, t = torch.randn(2, 3, 8, 8), torch.tensor([3, 70])
    net(z, t)
    order = [name for part in ("down", "middle", "up") for name in told if name.startswith(part)]
    assert list(told) == order  # as they run, which is how the widths are listed
    assert [told[name].shape[1] for name in order] == net.offset_widths
    whole = net.offsets(net.time(timestep_embedding(t, net.embedding_dim)))
    torch.testing.assert_close(torch.cat(list(told.values()), dim=1), whole)


def test_a_block_has_no_redundant_bias() -> None:
    def biases(block: ResBlock) -> list[str]:
        layers = {name: layer for name, layer in block.named_modules() if isinstance(layer, nn.Conv2d)}
        return [name for name, layer in layers.items() if layer.bias is not None]

    assert biases(ResBlock(8, 8)) == ["second"]
    assert biases(ResBlock(8, 16)) == ["skip"]


def test_every_parameter_of_the_denoiser_learns() -> None:
    torch.manual_seed(0)
    net = UNet(3, (64, 96))  # more than one channel to a group, or the norm would swallow the offset
    grown(net)
    net(torch.randn(2, 3, 8, 8), torch.tensor([3, 70])).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())
