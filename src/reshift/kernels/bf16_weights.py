"""bf16 copies of a network's weights for one training step, all made in one go.

Under autocast every convolution and linear layer casts its own weight, forwards, and its gradient, backwards: two launches of a
few microseconds for each of some hundred tensors, frozen networks included. Here all weights are copied at once, and the
gradients come back at once. The numbers are the same to the bit: autocast, too, casts a weight once a step and sums its
gradients in bf16.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from reshift.nets.conv import Conv2d
from reshift.nets.pointwise import Linear, Pointwise
from reshift.nets.thin import ThinConv2d, ThinConvTranspose2d

# Not whatever derives from them: such a layer may compute with its weight.
LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear, Conv2d, Linear, Pointwise, ThinConv2d, ThinConvTranspose2d)


class Halves:
    """The copies for the layers of ``module``; those of trained weights take part in the gradient.

    Frozen weights are copied once. Trained ones are copied for every step, unless their optimiser does it (``kept``).
    """

    def __init__(self, module: nn.Module) -> None:
        layers = [layer for layer in module.modules() if type(layer) in LAYERS]
        found = [(layer, name, p) for layer in layers for name, p in layer.named_parameters(recurse=False)]
        self.places = [(layer, name) for layer, name, _ in found]
        self.whole = [p for *_, p in found]
        self.half = [p.detach().to(torch.bfloat16).requires_grad_(p.requires_grad) for p in self.whole]
        self.by_weight = {id(p): half for p, half in zip(self.whole, self.half, strict=True)}
        self.kept = False
        self.versions = [p._version for p in self.whole]  # noqa: SLF001 (torch's count of changes in place)

    def of(self, weight: nn.Parameter) -> Tensor | None:
        """The copy of a weight, if it has one."""
        return self.by_weight.get(id(weight))

    def follow(self) -> None:
        """Copy what others than the keeping optimiser have changed since the last time, such as a method between two steps."""
        if not self.kept:
            return
        versions = [p._version for p in self.whole]  # noqa: SLF001
        changed = [i for i, (old, new) in enumerate(zip(self.versions, versions, strict=True)) if old != new]
        _copy([self.half[i] for i in changed], [self.whole[i] for i in changed])
        self.versions = versions

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the layers compute with fresh copies."""
        if not self.kept:
            _copy([half for half in self.half if half.requires_grad], [p for p in self.whole if p.requires_grad])
        self._put(self.half)
        try:
            yield
        finally:
            self._put(self.whole)

    def give_back(self) -> None:
        """Hand the copies' gradients to the weights, in their own type."""
        known = [(whole, half, half.grad) for whole, half in zip(self.whole, self.half, strict=True) if half.grad is not None]
        grads = [torch.empty_like(whole) for whole, *_ in known]
        _copy(grads, [grad for *_, grad in known])
        for (whole, half, _), grad in zip(known, grads, strict=True):
            whole.grad, half.grad = grad, None

    def forget(self) -> None:
        """Drop all gradients, also those of weights that another objective's loss went through."""
        for half in self.half:
            half.grad = None

    def _put(self, tensors: Sequence[Tensor]) -> None:
        for (layer, name), tensor in zip(self.places, tensors, strict=True):
            layer._parameters[name] = tensor  # type: ignore[assignment]  # noqa: SLF001


@torch.no_grad()
def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    """All at once, by what torch's own optimisers are built on; of a network without such layers there is nothing to copy."""
    if to:
        torch._foreach_copy_(to, values)
