"""bf16 copies of a network's weights for one training step, all made at once.

Under autocast every convolution and linear layer casts its own weight, forwards, and its gradient, backwards: two
launches of a few microseconds for each of some hundred tensors, frozen networks included. Here all weights are copied
at once, and the gradients come back at once. The numbers are the same to the bit: autocast, too, casts a weight once
a step and sums its gradients in bf16.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from reshift.kernels.available import plain_type

LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)  # and their twins, but no other subclass: it may compute with its weight


class Bf16Weights:
    """bf16 copies for the layers of ``module``; the copies of trained weights take part in the gradient.

    Frozen weights are copied once. Trained ones are copied for every step, unless their optimiser does it.
    """

    def __init__(self, module: nn.Module) -> None:
        layers = [layer for layer in module.modules() if plain_type(layer) in LAYERS]
        found = [(layer, name, p) for layer in layers for name, p in layer.named_parameters(recurse=False)]
        self.places = [(layer, name) for layer, name, _ in found]
        self.weights = [p for *_, p in found]
        self.copies = [p.detach().to(torch.bfloat16).requires_grad_(p.requires_grad) for p in self.weights]
        self.by_weight = {id(p): copy for p, copy in zip(self.weights, self.copies, strict=True)}
        self.updated_by_optimiser = False
        self.versions = [p._version for p in self.weights]  # noqa: SLF001 (torch's count of changes in place)

    def copy_of(self, weight: nn.Parameter) -> Tensor | None:
        """The copy of a weight, if it has one."""
        return self.by_weight.get(id(weight))

    def sync(self) -> None:
        """Copy the weights that something other than the optimiser has changed, such as a method between two steps."""
        if not self.updated_by_optimiser:
            return
        versions = [p._version for p in self.weights]  # noqa: SLF001
        changed = [i for i, (old, new) in enumerate(zip(self.versions, versions, strict=True)) if old != new]
        _copy([self.copies[i] for i in changed], [self.weights[i] for i in changed])
        self.versions = versions

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the layers compute with fresh copies."""
        if not self.updated_by_optimiser:
            _copy([copy for copy in self.copies if copy.requires_grad], [p for p in self.weights if p.requires_grad])
        self._install(self.copies)
        try:
            yield
        finally:
            self._install(self.weights)

    def copy_grads_back(self) -> None:
        """Give the copies' gradients to the weights, in the weights' own type."""
        known = [
            (weight, copy, copy.grad) for weight, copy in zip(self.weights, self.copies, strict=True) if copy.grad is not None
        ]
        grads = [torch.empty_like(weight) for weight, *_ in known]
        _copy(grads, [grad for *_, grad in known])
        for (weight, copy, _), grad in zip(known, grads, strict=True):
            weight.grad, copy.grad = grad, None

    def zero_grad(self) -> None:
        """Drop all gradients, also those of weights that another objective's loss went through."""
        for copy in self.copies:
            copy.grad = None

    def _install(self, tensors: Sequence[Tensor]) -> None:
        for (layer, name), tensor in zip(self.places, tensors, strict=True):
            layer._parameters[name] = tensor  # type: ignore[assignment]  # noqa: SLF001


@torch.no_grad()
def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    """Copy all at once, as torch's own optimisers do. The lists may be empty."""
    if to:
        torch._foreach_copy_(to, values)
