"""DMD on the CPU: one image, 49 masks, the paper's settings, beside the plain loop over masks that one writes from Algorithm 2.

    python benchmarks/inference_cpu.py [--threads 2] [--repeats 9] [--only NAME …] [--out FILE]
    python benchmarks/inference_cpu.py --clock cpu --threads 1           # on a busy machine: CPU seconds, not seconds
    python benchmarks/inference_cpu.py --quality BUNDLE MANIFEST         # AUC and pixel AP in float32 and in bf16

The variants take turns in one process; memory is the resident peak of a process of its own, imports and model included. Those
with other engines need their packages (onnxruntime, onnx, onnxscript) and are left out where these are missing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from measure import MIB, _resident_peak, machine
from reshift.core.anomaly import overlap_average, residual_map, upsample_mask
from reshift.core.diffusion import clean_estimate, masked_forward
from reshift.core.schedule import at
from reshift.data.manifest import Case, load_cases
from reshift.data.prepare import Prepared, prepare_mask
from reshift.data.read import read_image, read_mask
from reshift.evaluation.metrics.image import roc_auc
from reshift.evaluation.metrics.pixels import PixelMetrics
from reshift.inference.model import Model, load_model
from reshift.methods.dmd.method import DMD
from reshift.methods.dmd.settings import DMDSettings
from reshift.system.device import precision, scoring

CPU = torch.device("cpu")
Map = Callable[[Tensor], Tensor]


def network() -> DMD:
    """Untrained, with something in the layers that start at zero: they would hide all differences."""
    torch.manual_seed(0)
    model = DMD(DMDSettings(), 128, 1).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.02)
    return model


# ---- variants ----------------------------------------------------------------------------------------------------------


def plain(model: DMD) -> Map:
    """Algorithm 2 as it is printed: one mask after the other, the whole image decoded for each."""

    @torch.no_grad()
    def anomaly_map(x: Tensor) -> Tensor:
        s, (H, W) = model.settings, x.shape[-2:]
        z0, (masks, noise) = model.latents(x), model.inference_masks()
        t = torch.tensor([s.t_star], device=x.device)
        a_bar = at(model.alpha_bar, t)
        N_pix, D_pix = x.new_zeros(1, H, W), x.new_zeros(1, H, W)
        for M, eps in zip(masks.split(1), noise.split(1), strict=True):
            z_t = masked_forward(z0, eps, M, a_bar)
            z0_hat = clean_estimate(z_t, model.denoiser(z_t, t), z0, M, a_bar)
            up = upsample_mask(M, H, W)
            N_pix += up * residual_map(x, model.vqvae.decode(z0_hat / model.scale))
            D_pix += up
        return overlap_average(N_pix, D_pix, s.delta)

    return anomaly_map


def whole(model: DMD) -> Map:
    """All masks in one pass, but whole images decoded."""

    @torch.inference_mode()
    def anomaly_map(x: Tensor) -> Tensor:
        z0, (masks, noise) = model.latents(x), model.inference_masks()
        x_r = model.vqvae.decode(model.restore(z0, masks, noise)[0] / model.scale)
        up = upsample_mask(masks, *x.shape[-2:])
        return overlap_average((up * residual_map(x, x_r)).sum(0, keepdim=True), up.sum(0), model.settings.delta)

    return anomaly_map


def ours(model: DMD, amp: str = "off") -> Map:
    """The package's own map; ``amp`` as in the package, or ``default`` for what it chooses on this processor."""

    def anomaly_map(x: Tensor) -> Tensor:
        inside: AbstractContextManager[object] = scoring(CPU, model) if amp == "default" else precision(CPU, amp)
        with torch.inference_mode(), inside:
            return model.anomaly_map(x)

    return anomaly_map


def channels_last(model: DMD) -> DMD:
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def rows(model: DMD, number: int) -> DMD:
    model.settings = model.settings.model_copy(update={"inference_rows": number})
    return model


class Engine(nn.Module):
    """Stands in for the denoiser: run by something else than torch."""

    def __init__(self, run: Callable[[Any], Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.run({"z": z.contiguous().numpy(), "t": t.numpy()})))


class Latents:
    """What the ranges of int8 are taken from: the noised latents of two images."""

    def __init__(self, model: DMD) -> None:
        masks, noise = model.inference_masks()
        a_bar = at(model.alpha_bar, torch.tensor([model.settings.t_star]))
        inputs = [masked_forward(model.latents(image(seed)), noise, masks, a_bar).numpy() for seed in (1, 2)]
        self.left = iter([{"z": z, "t": np.array([model.settings.t_star])} for z in inputs])

    def get_next(self) -> Any:
        return next(self.left, None)


def onnx(model: DMD, *, int8: bool) -> Map:
    """ONNX Runtime in float32, or with convolutions in int8."""
    ort = import_module("onnxruntime")
    with tempfile.TemporaryDirectory() as folder:
        path, (_, z) = f"{folder}/float32.onnx", model.inference_masks()
        torch.onnx.export(model.denoiser, (z, torch.tensor([500])), path, input_names=["z", "t"], dynamo=True, verbose=False)
        if int8:
            quantize, path8 = import_module("onnxruntime.quantization"), f"{folder}/int8.onnx"
            quantize.quantize_static(path, path8, Latents(model), per_channel=True, op_types_to_quantize=["Conv"],
                                     activation_type=quantize.QuantType.QUInt8, weight_type=quantize.QuantType.QInt8)  # fmt: skip
            path = path8
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    model.denoiser = Engine(lambda inputs: session.run(None, inputs)[0])  # type: ignore[assignment]
    return ours(model)


FIRST = "plain loop, float32"
VARIANTS: dict[str, Callable[[DMD], Map]] = {
    FIRST: plain,
    "all masks at once, whole images": whole,
    "windows, float32": ours,
    "windows, float32, channels-last": lambda m: ours(channels_last(m)),
    "windows, float32, 7 masks a pass": lambda m: ours(rows(m, 7)),
    "windows, bf16 denoiser": lambda m: ours(m, "bf16"),
    "windows, bf16, channels-last": lambda m: ours(channels_last(m), "bf16"),
    "windows, bf16, 7 masks a pass": lambda m: ours(rows(m, 7), "bf16"),
    "the default on this processor": lambda m: ours(m, "default"),
}
OTHERS: dict[str, tuple[Callable[[DMD], Map], tuple[str, ...]]] = {
    "ONNX Runtime, float32": (lambda m: onnx(m, int8=False), ("onnxruntime", "onnxscript")),
    "ONNX Runtime, int8": (lambda m: onnx(m, int8=True), ("onnxruntime", "onnxscript")),
}
ALL = VARIANTS | {name: make for name, (make, needs) in OTHERS.items() if all(find_spec(package) for package in needs)}


# ---- speed, memory, differences ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    variant: str
    start: float  # seconds until the first map is there
    rate: float  # images a second, median
    ratio: float  # to the plain loop
    peak: float  # MiB
    difference: float  # largest, to the plain loop's map


def image(seed: int = 0) -> Tensor:
    return torch.rand(1, 1, 128, 128, generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0


def measured(names: list[str], repeats: int, clock: Callable[[], float]) -> list[Row]:
    x, maps, firsts, seconds = image(), dict[str, Map](), dict[str, tuple[float, Tensor]](), dict[str, list[float]]()
    for name in names:
        begun = time.perf_counter()
        maps[name] = ALL[name](network())
        found = maps[name](x).clone()
        firsts[name] = time.perf_counter() - begun, found
    for _ in range(repeats):
        for name, anomaly_map in maps.items():
            begun = clock()
            anomaly_map(x)
            seconds.setdefault(name, []).append(clock() - begun)
    rate = {name: 1.0 / float(np.median(each)) for name, each in seconds.items()}
    reference = firsts[FIRST][1]
    rows = []
    for name, (start, found) in firsts.items():
        difference = float((found - reference).abs().max())
        rows.append(Row(name, start, rate[name], rate[name] / rate[FIRST], peak(name), difference))
    return rows


def peak(name: str) -> float:
    """MiB of a process that makes three maps by this variant and nothing else."""
    command = [sys.executable, __file__, "--threads", str(torch.get_num_threads()), "--peak", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def table(rows: list[Row], unit: str) -> None:
    print(f"| {'variant':<34} | first map, s | {unit} | × plain | peak MiB | largest difference |")
    print("|---|---|---|---|---|---|")
    for r in rows:
        print(f"| {r.variant:<34} | {r.start:.1f} | {r.rate:.2f} | {r.ratio:.2f} | {r.peak:,.0f} | {r.difference:.1e} |")


# ---- quality -----------------------------------------------------------------------------------------------------------


def quality(bundle: Path, manifest: Path) -> None:
    """Image AUC (the method's score, and the mean of the map) and pixel AP on the test split, by precision."""
    model, cases = load_model(bundle, "cpu"), [case for case in load_cases(manifest) if case.split == "test"]
    inputs = [model.prepare(read_image(case.image)) for case in cases]
    found = {amp: judged(model, cases, inputs, amp) for amp in ("off", "bf16")}
    print("| precision | AUC | AUC of the map's mean | pixel AP |\n|---|---|---|---|")
    for amp, (figures, _) in found.items():
        print(f"| {'float32' if amp == 'off' else amp} | " + " | ".join(f"{value:.5f}" for value in figures) + " |")
    maps = [maps for _, maps in found.values()]
    print(f"largest difference of {len(cases)} maps {np.abs(maps[0] - maps[1]).max():.1e}, largest value {maps[0].max():.2f}")


def judged(model: Model, cases: list[Case], inputs: list[Prepared], amp: str) -> tuple[list[float], Any]:
    pixels, scores, maps = PixelMetrics(None), [], []
    for case, x in zip(cases, inputs, strict=True):
        with torch.inference_mode(), precision(CPU, amp):
            prediction = model.detector.predict(torch.from_numpy(x.pixels[None]))
        scores.append(float(prediction.score[0]))
        maps.append(prediction.heatmap[0].numpy())
        mask = prepare_mask(read_mask(case.mask), x.geometry, len(maps[-1])) if case.mask else None
        pixels.add(maps[-1], mask)
    labels = np.array([case.label == 1 for case in cases])
    means = np.array([each.mean() for each in maps], dtype=np.float64)
    figures = [roc_auc(labels, np.array(scores)), roc_auc(labels, means), pixels.histogram.average_precision()]
    return [float("nan") if value is None else value for value in figures], np.stack(maps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--only", nargs="+", choices=list(ALL), default=list(VARIANTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quality", nargs=2, type=Path, metavar=("BUNDLE", "MANIFEST"))
    parser.add_argument("--peak", choices=list(ALL), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        anomaly_map = ALL[options.peak](network())
        for _ in range(3):
            anomaly_map(image())
        print(_resident_peak() / MIB)
    elif options.quality:
        quality(*options.quality)
    else:
        about = machine(CPU)
        print(", ".join(f"{name} {value}" for name, value in about.items() if value is not None))
        rows = measured(list(dict.fromkeys([FIRST, *options.only])), options.repeats,
                        time.process_time if options.clock == "cpu" else time.perf_counter)  # fmt: skip
        table(rows, "images/s" if options.clock == "wall" else "images/CPU s")
        if options.out:
            options.out.write_text(json.dumps({"machine": about, "rows": [row._asdict() for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
