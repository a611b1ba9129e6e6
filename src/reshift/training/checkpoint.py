"""The state of a training run on disk: weights, optimiser moments and the position, in one safetensors file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from reshift.errors import UserError
from reshift.system.files import atomic_bytes
from reshift.training.flat import Lowest


class Position(NamedTuple):
    """The next thing to do: step ``step`` of stage ``stage``."""

    stage: int = 0
    step: int = 0
    seconds: float = 0.0  # of training so far, over all resumes
    updates: tuple[int, ...] = ()  # of every finished stage
    lowest: Lowest = Lowest()  # loss of this stage on held-out normals


def save_checkpoint(path: Path, module: nn.Module, optimisers: Sequence[torch.optim.Optimizer], position: Position) -> None:
    """Write atomically. Random state is not saved because there is none: every step seeds its own generator."""
    tensors = {f"model.{name}": value for name, value in module.state_dict().items()}
    for i, optimiser in enumerate(optimisers):
        for j, moments in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{i}.{j}.{name}": value for name, value in moments.items()}
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    atomic_bytes(path, save(plain, metadata={"position": json.dumps(position)}))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], Position]:
    """Read back what ``save_checkpoint`` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            stage, step, seconds, *new = json.loads(file.metadata()["position"])
            updates, lowest = new or [(), ()]  # a checkpoint from before stages could end early
            position = Position(stage, step, seconds, tuple(updates), Lowest(*lowest))
            return {name: file.get_tensor(name) for name in file.keys()}, position  # noqa: SIM118 (not a dict)
    except (SafetensorError, KeyError, TypeError, ValueError) as err:
        raise UserError(f"{path}: damaged checkpoint ({err}); delete the run's folder and start again") from None


def restore_model(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put the weights back."""
    module.load_state_dict({name.removeprefix("model."): v for name, v in tensors.items() if name.startswith("model.")})


def restore_optimiser(optimiser: torch.optim.Optimizer, index: int, tensors: dict[str, Tensor]) -> None:
    """Put one optimiser's moments back."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        if name.startswith(f"optimiser.{index}."):
            _, _, parameter, moment = name.split(".")
            state.setdefault(int(parameter), {})[moment] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    for weight, moments in optimiser.state.items():  # in the file they are row by row; on a GPU weights are channels-last
        for name, value in moments.items():
            if value.shape == weight.shape and value.stride() != weight.stride():
                moments[name] = torch.empty_like(weight).copy_(value)
