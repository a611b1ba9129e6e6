"""The reconstruction-shift classifier f_ψ: three conv blocks, two fully connected layers, a two-class softmax."""

from torch import Tensor, nn

from reshift.nets.norm import BatchNormReLUPool

POOLED = 4  # the feature grid before the first fully connected layer, whatever the image size


def _block(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), BatchNormReLUPool(c_out))  # BatchNorm has a bias


class Classifier(nn.Module):
    """Tells original images (class 0) from their reconstructed counterparts (class 1)."""

    def __init__(self, channels: int = 1, widths: tuple[int, ...] = (32, 64, 128), hidden: int = 128) -> None:
        super().__init__()
        blocks = [_block(a, b) for a, b in zip((channels, *widths[:-1]), widths, strict=True)]
        self.convs = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(POOLED), nn.Flatten())
        self.hidden = nn.Sequential(nn.Linear(widths[-1] * POOLED**2, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, 2)

    def features(self, x: Tensor) -> Tensor:
        """The image-level embedding before the last layer, ``(B, hidden)``."""
        embedding: Tensor = self.hidden(self.convs(x))
        return embedding

    def forward(self, x: Tensor) -> Tensor:
        """Two-class logits, ``(B, C, H, W)`` → ``(B, 2)``; f_ψ is the softmax of column one."""
        logits: Tensor = self.out(self.features(x))
        return logits
