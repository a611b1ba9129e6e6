"""Witness: what a network that has learned to remove coarse noise from normals would change (after Kascenas et al. 2022)."""

from collections.abc import Sequence

from torch import Tensor

from reshift.methods.detector import Step
from reshift.methods.ops.filters import erode, median_filter
from reshift.methods.ops.noise import coarse_noise
from reshift.methods.reshift.shifts import anatomy
from reshift.methods.reshift.witness import CrossFitted, Example, Maps, Seen, TrainedWitness, average_mirrored
from reshift.nets.dense import DenseUNet

WINDOW = 5  # pixels of a 128-pixel image: of the median, and of the rim that is left out


class Denoiser(TrainedWitness):
    """Cross-fitted denoisers; the map is the median-filtered change, 0 at the rim, where every edge is changed a little."""

    kind = "denoising"

    def __init__(self, channels: int, widths: Sequence[int], folds: int, *, grain: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.nets = CrossFitted([DenseUNet(channels, widths, out=channels, grain=grain) for _ in range(folds)])

    def loss(self, example: Example, maps: Maps = ()) -> Tensor:
        """Squared error inside the anatomy."""
        return self.nets.mean_loss(example.image, maps, example, masked_squared_error)

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:
        """The change, averaged over channels."""
        change = (self.denoised(seen, without) - seen.x).abs().mean(1, keepdim=True)
        return median_filter(change, self.window) * erode(seen.inside, self.window)

    def denoised(self, seen: Seen, without: int | None = None) -> Tensor:
        """The images as they would look if they were normal."""
        return average_mirrored(lambda view: self.nets.mean_output(view.x, (), without), seen)


def noisy(x: Tensor, grid: int, std: float, step: Step) -> Example:
    """Normals with coarse noise inside the anatomy; the target is the image without it."""
    inside = anatomy(x)
    return Example(x + inside * coarse_noise(x, grid, std, step), x, inside)


def masked_squared_error(output: Tensor, target: Tensor, inside: Tensor) -> Tensor:
    """Mean squared error over the pixels ``inside``."""
    return ((output - target).square() * inside).sum() / (inside.sum() * target.shape[1]).clamp(min=1.0)
