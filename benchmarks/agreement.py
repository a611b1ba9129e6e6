"""How far our GPU kernels, and torch's in bf16, are from float32: outputs and all gradients; and recorded steps from those that
are launched kernel by kernel. Sections of gpu.py.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from measure import Bench
from reshift.core.quantize import nearest_code
from reshift.data.phantom import write_phantom
from reshift.kernels.bf16_weights import Halves
from reshift.nets import kernels
from reshift.nets.groupnorm import GroupNorm
from reshift.nets.nearest import nearest
from reshift.nets.norm_pool import NormPool
from reshift.nets.norm_relu import NormRelu
from reshift.nets.pointwise import Pointwise
from reshift.nets.thin import ThinConv2d, ThinConvTranspose2d
from reshift.nets.unet import Attention
from reshift.system.device import to_device
from reshift.training.run import resolve, train_run
from speed import BATCH

Logged = dict[str, list[float]]  # what a stage logs, quantity by quantity
RECORDED = ("dmd", "reshift", "madad", "ddpm", "dae", "fanogan")  # between them every layer and every kind of stage
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "GroupNorm, SiLU": (lambda: GroupNorm(32, 128), (128, 16, 16)),
    "BatchNorm, ReLU": (lambda: NormRelu(32), (32, 64, 64)),
    "BatchNorm, ReLU, pooling": (lambda: NormPool(32), (32, 64, 64)),
    "attention": (lambda: Attention(192, 4), (192, 8, 8)),
    "1×1 convolution": (lambda: Pointwise(192, 256), (192, 8, 8)),
    "convolution from one channel": (lambda: ThinConv2d(1, 32, 3, padding=1, bias=False), (1, 128, 128)),
    "convolution to one channel": (lambda: ThinConvTranspose2d(32, 1, 4, 2, 1), (32, 64, 64)),
}


@contextmanager
def torch_kernels() -> Iterator[None]:
    """Without our own."""
    before, kernels.ENABLED = kernels.ENABLED, False
    try:
        yield
    finally:
        kernels.ENABLED = before


def outcome(layer: nn.Module, x: Tensor, *, half: bool) -> list[Tensor]:
    """Output and gradients, in float32; in half precision as training computes them."""
    given = x.to(torch.bfloat16 if half else torch.float32, copy=True).requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=half), Halves(layer).in_use() if half else nullcontext():
        y: Tensor = layer(given, given) if isinstance(layer, Attention) else layer(given)
        learned = list(layer.parameters())
    back = torch.linspace(-0.5, 1.0, y.numel(), device=y.device).view_as(y).to(y.dtype)
    return [value.float() for value in (y, *torch.autograd.grad(y, [given, *learned], back))]


def worst(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The mean difference as a share of the mean value, of the tensor where it is largest.

    Not the largest difference: where two pixels of a pooling window are alike in bf16, its gradient goes to either.
    """
    pairs = [(a.detach(), b.detach()) for a, b in zip(found, exact, strict=True)]
    return max(float((a - b).abs().mean() / b.abs().mean().clamp(min=1e-12)) for a, b in pairs)


def agreement(bench: Bench) -> None:
    """Every layer that has kernels of its own, on the input that it has in DMD."""
    tf32 = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    for name, (make, shape) in LAYERS.items():
        torch.manual_seed(0)
        layer = to_device(make(), bench.device)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.3)
        x = torch.randn(BATCH, *shape, device=bench.device).bfloat16().float().contiguous(memory_format=torch.channels_last)
        with torch_kernels():
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
            exact = outcome(layer, x, half=False)
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32
            theirs = outcome(layer, x, half=True)
        bench.table.add("agreement", f"{name}: ours", worst(outcome(layer, x, half=True), exact), "off float32")
        bench.table.add("agreement", f"{name}: torch's in bf16", worst(theirs, exact), "off float32")
    z, codebook = (torch.randn(shape, device=bench.device) for shape in ((BATCH, 64, 16, 16), (256, 64)))
    exact_codes = nearest_code(z.double(), codebook.double())
    for name, find in (("ours", nearest), ("torch's in float32", nearest_code)):
        other = (find(z, codebook) != exact_codes).double().mean()
        bench.table.add("agreement", f"nearest code: {name}", float(other), "chosen otherwise than by float64")


def recorded(bench: Bench) -> None:
    """All that the real training loop logs, recorded and launched kernel by kernel: the same kernels, in another order.

    Some of torch's kernels add up in any order. Where the two differ, a second run kernel by kernel says how much that makes.
    """
    os.environ["RESHIFT_CACHE"] = "off"
    with tempfile.TemporaryDirectory() as folder:
        data = write_phantom(Path(folder) / "data", train=2 * BATCH, test_normal=0, test_abnormal=0, size=128)
        for method in RECORDED[: 1 if bench.quick else None]:
            plain, fast = (
                _logged(method, data, Path(folder) / f"{method}-{graphs}", bench, graphs=graphs) for graphs in (False, True)
            )
            again = plain if fast == plain else _logged(method, data, Path(folder) / f"{method}-again", bench, graphs=False)
            for stage, expected in plain.items():
                numbers = sum(len(values) for values in expected.values())
                label, unit = f"{method}, {stage}: {numbers} numbers", "largest relative difference"
                bench.table.add("recorded", label, largest(fast[stage], expected), unit)
                if again is not plain:
                    bench.table.add("recorded", f"{label}, kernel by kernel twice", largest(again[stage], expected), unit)


def largest(found: Logged, expected: Logged) -> float:
    """Largest difference, relative to the mean size of its quantity: some of them go through 0."""
    sizes = {name: max(sum(map(abs, values)) / len(values), 1e-12) for name, values in expected.items()}
    return max(abs(a - b) / sizes[name] for name in expected for a, b in zip(found[name], expected[name], strict=True))


def _logged(method: str, data: Path, out: Path, bench: Bench, *, graphs: bool) -> dict[str, Logged]:
    """A few steps of every stage; the numbers of all steps, by stage."""
    short = {name: 2 if bench.quick else 8 for name in resolve(method, "paper", []).model if name.endswith("epochs")}
    short |= {"steps": 4 if bench.quick else 16} if method == "reshift" else {}
    layer = {
        "data": {"holdout": 0.0},
        "train": {"device": str(bench.device), "graphs": graphs, "log_every": 1},
        "calibrate": {"features": "off", "training_sample": 16},
        "model": short,
    }
    train_run(resolve(method, "paper", [layer]), data, out)
    found = dict[str, Logged]()
    for line in (out / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        stage = found.setdefault(record["stage"], {})
        for name in record.keys() - {"stage", "seconds"}:
            stage.setdefault(name, []).append(record[name])
    return found
