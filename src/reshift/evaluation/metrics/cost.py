"""What a result cost, as a benchmark measures it."""

from typing import NamedTuple


class Cost(NamedTuple):
    """The training and the predictions of one benchmark cell."""

    train_seconds: float  # without calibration
    steps: int  # of the optimiser, over all stages
    images_per_second: float  # predicted, the first batch left out
