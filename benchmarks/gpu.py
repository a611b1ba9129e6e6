"""DMD on a GPU beside the same computation in plain PyTorch and in MONAI's parts, and how far it is from the card's limit.

    python benchmarks/gpu.py [--only training inference …] [--out rows.json] [--quick]

One process, one table; every figure is a median. "Plain PyTorch" is our own network without our own kernels, float32, NCHW,
launched kernel by kernel, and for inference the loop over masks as Algorithm 2 prints it. Networks are untrained: that changes
no running time.
"""

import io
import time
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from agreement import agreement, recorded, torch_kernels
from inference_cpu import network, plain
from measure import Bench, arguments, exponent, finish, measure, peak_mib, timed
from reshift import methods
from reshift.config import Config
from reshift.inference.bundle import Bundle, build
from reshift.inference.model import Model
from reshift.methods.dmd.method import DMD
from reshift.nets.unet import UNet
from reshift.training.loop import as_module
from reshift.training.run import resolve
from speed import BATCH, STAGES, pictures, train

PEAK = {"NVIDIA H200": 989e12, "NVIDIA H100": 989e12}  # bf16 FLOP/s without sparsity, NVIDIA's data sheets
WARM = 5  # calls before the clock: predictions are recorded at the fourth
CHAINS = {"model": {"stride": 5}}  # image-space diffusion: every fifth step
CHAINED = ("ddpm", "anoddpm", "autoddpm", "thor-gaussian", "thor-simplex", "diffuse")
PLAIN = "plain PyTorch, float32"
GRIDS = {16: (8, 8), 49: (8, 4), 169: (8, 2), 400: (13, 1)}  # masks on the 32×32 grid of 256-pixel images: (side, stride)


def loaded(detector: Any, config: Config, device: torch.device) -> Model:
    """Ready for inference, without thresholds."""
    return Model(Bundle(as_module(detector).eval().requires_grad_(False), config, None, {}, ""), str(device))


def dmd(device: torch.device, size: int = 128, **settings: Any) -> Model:
    config = resolve("dmd", "paper", [{"data": {"size": size}, "model": settings}])
    return loaded(build(config), config, device)


def run(model: Model, pixels: NDArray[np.float32]) -> None:
    """All pictures, in the model's batches."""
    for start in range(0, len(pixels), model.batch):
        model.run(pixels[start : start + model.batch])


def rate(bench: Bench, section: str, what: str, images: int, work: Callable[[], object], warmup: int = WARM) -> float:
    """Add a row of images a second."""
    timing = timed(work, bench.device, repeats=bench.repeats, warmup=warmup)
    bench.table.rate(section, what, images, timing, "images/s")
    return images / timing.median


# ---- training ----------------------------------------------------------------------------------------------------------


def training(bench: Bench) -> None:
    """A step of both stages, in milliseconds; launching kernel by kernel and recorded."""
    kinds: dict[str, dict[str, Any]] = {
        PLAIN: {"amp": "off", "graphs": False},
        "plain PyTorch, autocast": {"graphs": False},
        "ours": {},
    }
    for number, name in enumerate(STAGES):
        found = {}
        for kind, settings in kinds.items():
            ours = kind == "ours"
            with nullcontext() if ours else torch_kernels():
                blocks = train(bench.device, number, blocks=bench.repeats + 1, block=20 if ours else 5, **settings)
            seconds = sorted(1e3 * block for block in blocks[1:])  # the first warms up
            found[kind] = seconds[len(seconds) // 2]
            label = f"{name}, batch {BATCH}: {kind}"
            bench.table.add("training", label, found[kind], "ms a step", seconds[-1], seconds[0])
        bench.table.add("training", f"{name}: ours", found[PLAIN] / found["ours"], "× plain PyTorch")


def denoisers() -> dict[str, Callable[[], nn.Module]]:
    """The latent U-Net, ours and, if it is installed, MONAI's of the same widths."""
    widths = (128, 192, 256)
    made: dict[str, Callable[[], nn.Module]] = {"ours": lambda: UNet(64, widths, 1, 4)}
    if find_spec("monai") is not None:
        from monai.networks.nets import DiffusionModelUNet  # type: ignore[import-not-found, import-untyped, unused-ignore]

        made["MONAI"] = lambda: DiffusionModelUNet(
            spatial_dims=2, in_channels=64, out_channels=64, channels=widths, attention_levels=(False, True, True),
            num_res_blocks=1, num_head_channels=64,
        )  # fmt: skip
    return made


def denoiser(bench: Bench) -> None:
    """A step of the denoiser alone, as MONAI's users run it and as ours runs: eager, and in a CUDA graph."""
    for name, make in denoisers().items():
        for kind in ("float32, eager", "bf16, recorded") if bench.cuda else ("float32, eager",):
            net = make().to(bench.device)
            if kind.startswith("bf16"):
                net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            step = _denoising(net, bench.device, half=kind.startswith("bf16"))
            timing = timed(_recorded(step) if kind.endswith("recorded") else step, bench.device, repeats=bench.repeats, calls=10)
            size = sum(p.numel() for p in net.parameters()) / 1e6
            label = f"denoiser of {name}, {size:.1f} M parameters, batch {BATCH}: {kind}"
            bench.table.add("denoiser", label, 1e3 * timing.median, "ms a step", 1e3 * timing.high, 1e3 * timing.low)


def _denoising(net: nn.Module, device: torch.device, *, half: bool) -> Callable[[], None]:
    gpu = device.type == "cuda"
    optimiser = torch.optim.AdamW(net.parameters(), 1e-4, fused=gpu, capturable=gpu)
    z, t = torch.randn(BATCH, 64, 16, 16, device=device), torch.randint(0, 1000, (BATCH,), device=device)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            out: Tensor = net(z, t)
        (out.float() - z).square().mean().backward()
        optimiser.step()

    return step


def _recorded(step: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


# ---- inference ---------------------------------------------------------------------------------------------------------


def inference(bench: Bench) -> None:
    """Images a second with 49 masks, how far the maps are from the plain loop's, and what share of the card's peak that is."""
    reference = network().to(bench.device)
    x = torch.from_numpy(pictures(2)).to(bench.device)
    with torch_kernels():
        slow = plain(reference)
        maps = torch.cat([slow(image) for image in x.split(1)])
        first = rate(bench, "inference", "plain PyTorch, mask by mask, float32", 1, partial(slow, x[:1]), 1)
    config = resolve("dmd", "paper", [])
    model = loaded(reference, config, bench.device)
    for batch in (1, model.batch, 4 * model.batch) if bench.cuda else (1,):
        fast = rate(bench, "inference", f"ours, batch {batch}", batch, partial(model.run, pictures(batch)))
        if batch == model.batch:
            bench.table.add("inference", f"ours, batch {batch}", fast / first, "× plain PyTorch")
    flops = _flops(reference, x)
    bench.table.add("inference", "arithmetic", flops / 1e9, "GFLOP an image")
    bench.table.add("inference", "arithmetic done at the last rate", flops * fast / 1e12, "TFLOP/s")
    if bench.cuda and (peak := PEAK.get(torch.cuda.get_device_name(bench.device))):
        bench.table.add("inference", f"of the bf16 peak of {peak / 1e12:.0f} TFLOP/s", 100 * flops * fast / peak, "%")
    _agreement(bench, model, maps, x)


def _flops(model: DMD, x: Tensor) -> float:
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model.predict(x)
    return float(counter.get_total_flops()) / len(x)


def _agreement(bench: Bench, model: Model, maps: Tensor, x: Tensor) -> None:
    """Largest differences of any pixel of the maps, whose range is 0 … 2."""
    expected, two = maps.cpu().numpy(), x.cpu().numpy()
    together, alone = model.run(two)[1], np.concatenate([model.run(two[i : i + 1])[1] for i in range(2)])
    bench.table.add("inference", "ours against the plain loop", float(np.abs(together - expected).max()), "largest difference")
    bench.table.add("inference", "ours, alone against in a batch", float(np.abs(together - alone).max()), "largest difference")
    with torch.inference_mode():
        exact = model.detector.predict(x).heatmap.cpu().numpy()
    bench.table.add("inference", "ours in float32 against the loop", float(np.abs(exact - expected).max()), "largest difference")


def every_method(bench: Bench) -> None:
    """Images a second of every method, paper profile; chains of image-space diffusion take every fifth step."""
    for name in methods.METHODS:
        slow = name in CHAINED
        config = resolve(name, "paper", [CHAINS] if slow else [])
        model = loaded(build(config), config, bench.device)
        pixels = pictures(model.batch, config.data.size)
        label = f"{name}, batch {model.batch}"
        with redirect_stderr(io.StringIO()):
            rate(bench._replace(quick=slow), "methods", label, len(pixels), partial(model.run, pixels), 1 if slow else WARM)
        del model
        if bench.cuda:
            torch.cuda.empty_cache()


# ---- growth ------------------------------------------------------------------------------------------------------------


def growth(bench: Bench) -> None:
    """Seconds and peak memory of DMD's inference against size, masks and width, one at a time."""
    few, device = (32 if bench.cuda else 1), bench.device
    sizes = [64, 128] if bench.quick else [64, 128, 256, 512]
    _grow(bench, "size", sizes, lambda s: _one(dmd(device, s, mask_side=s // 8 - 6 * (s // 64), mask_stride=s // 64), few, s))
    grids = [*GRIDS][: 2 if bench.quick else None]
    _grow(bench, "masks", grids, lambda k: _one(dmd(device, 256, mask_side=GRIDS[k][0], mask_stride=GRIDS[k][1]), few, 256))
    widths = {0.5: (64, 96, 128), 1.0: (128, 192, 256), 2.0: (256, 384, 512)}
    _grow(bench, "width of the denoiser", [*widths], lambda w: _one(dmd(device, unet_widths=list(widths[w])), few))


def _one(model: Model, images: int, size: int = 128) -> Callable[[], object]:
    return partial(run, model, pictures(images, size))


def streams(bench: Bench) -> None:
    """Seconds and peak memory of DMD's inference against the number of images, each stream once; a million take minutes."""
    few, model = (32 if bench.cuda else 1), dmd(bench.device)
    timed(partial(run, model, pictures(few)), bench.device, repeats=1)  # so that no stream's memory counts the recording
    counts, seconds = [few, 4 * few] if bench.quick or not bench.cuda else [10**3, 10**4, 10**5, 10**6], []
    part = pictures(min(counts[-1], 1000))
    for count in counts:
        begun = time.perf_counter()
        peak = peak_mib(partial(_stream, model, part, count), bench.device)
        seconds.append(time.perf_counter() - begun)
        bench.table.add("growth", f"images = {count}: peak", peak, "MiB")
        bench.table.add("growth", f"images = {count}", seconds[-1], "s")
    bench.table.add("growth", "seconds against images", exponent(counts, seconds), "exponent")


def _stream(model: Model, part: NDArray[np.float32], images: int) -> None:
    """The same pictures again and again: an archive is never in memory at once."""
    for start in range(0, images, len(part)):
        run(model, part[: images - start])


def _grow(bench: Bench, what: str, values: list[Any], work: Callable[[Any], Callable[[], object]]) -> None:
    seconds = []
    for value in values:
        job = work(value)
        peak = peak_mib(job, bench.device)
        timing = timed(job, bench.device, repeats=3, warmup=3)
        finish(bench.device)
        seconds.append(timing.median)
        bench.table.add("growth", f"{what} = {value}: peak", peak, "MiB")
        bench.table.add("growth", f"{what} = {value}", timing.median, "s", timing.high, timing.low)
    bench.table.add("growth", f"seconds against {what}", exponent(values, seconds), "exponent")


SECTIONS = {f.__name__: f for f in (agreement, recorded, training, denoiser, inference, every_method, growth, streams)}


def main() -> None:
    """Measure the sections asked for."""
    measure(arguments((__doc__ or "").splitlines()[0], SECTIONS).parse_args(), SECTIONS)


if __name__ == "__main__":
    main()
