"""Witness: what a network that has learned to remove coarse noise from normals would change (after Kascenas et al. 2022)."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from reshift.methods.detector import Step
from reshift.methods.ops.filters import erode, median_filter
from reshift.methods.ops.noise import coarse_noise
from reshift.methods.reshift.shifts import anatomy
from reshift.methods.reshift.witness import CrossFitted, Example, Maps, Seen, TrainedWitness, average_mirrored
from reshift.nets.dense import DenseUNet

SIDE, WINDOW = 128, 5  # pixels of an image, and there of the median and of the rim that is left out


class Denoiser(TrainedWitness):
    """Cross-fitted denoisers; the map is the median-filtered change, 0 at the rim, where every edge is changed a little."""

    kind = "denoising"

    def __init__(self, channels: int, widths: Sequence[int], folds: int, *, grain: int) -> None:
        super().__init__()
        self.nets = CrossFitted([DenseUNet(channels, widths, out=channels, grain=grain) for _ in range(folds)])

    def loss(self, example: Example, maps: Maps = ()) -> Tensor:
        """Squared error inside the anatomy."""
        return self.nets.mean_loss(example.image, maps, example, masked_squared_error)

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:
        """The change, averaged over channels."""
        change = (self.denoised(seen, without) - seen.x).abs().mean(1, keepdim=True)
        window, block = window_and_block(min(change.shape[-2:]))
        coarse = median_filter(F.avg_pool2d(change, block) if block > 1 else change, window)
        smooth = F.interpolate(coarse, size=change.shape[-2:], mode="bilinear") if block > 1 else coarse
        return smooth * erode(seen.inside, window * block // 2 * 2 + 1)

    def denoised(self, seen: Seen, without: int | None = None) -> Tensor:
        """The images as they would look if they were normal."""
        return average_mirrored(lambda view: self.nets.mean_output(view.x, (), without), seen)


def window_and_block(side: int) -> tuple[int, int]:
    """The window of the median, and the side of the blocks that are averaged before it: of more pixels it would show no more."""
    block = max(1, side // SIDE)
    return max(1, round(WINDOW * side / block / SIDE)) // 2 * 2 + 1, block


def noisy(x: Tensor, grid: int, std: float, step: Step) -> Example:
    """Normals with coarse noise inside the anatomy; the target is the image without it."""
    inside = anatomy(x)
    return Example(x + inside * coarse_noise(x, grid, std, step), x, inside)


def masked_squared_error(output: Tensor, target: Tensor, inside: Tensor) -> Tensor:
    """Mean squared error over the pixels ``inside``."""
    return ((output - target).square() * inside).sum() / (inside.sum() * target.shape[1]).clamp(min=1.0)
