"""Names of tensors: whose weights a file holds, and what our networks call them. A file may have its authors' names or ours."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

Plan = dict[str, tuple[str, ...]]  # our name → the tensors of the file that are joined for it
DINOV2_BLOCKS = 8  # of 12; our network ends there

_LITE0 = (
    (r"^_conv_stem\.", "stem.conv."),
    (r"^_bn0\.", "stem.norm."),
    (r"^_conv_head\.", "head.conv."),
    (r"^_bn1\.", "head.norm."),
    (r"^_blocks\.(\d+)\._expand_conv\.", r"blocks.\1.expand.conv."),
    (r"^_blocks\.(\d+)\._bn0\.", r"blocks.\1.expand.norm."),
    (r"^_blocks\.(\d+)\._depthwise_conv\.", r"blocks.\1.depthwise.conv."),
    (r"^_blocks\.(\d+)\._bn1\.", r"blocks.\1.depthwise.norm."),
    (r"^_blocks\.(\d+)\._project_conv\.", r"blocks.\1.project.conv."),
    (r"^_blocks\.(\d+)\._bn2\.", r"blocks.\1.project.norm."),
)
_DINOV2_PARTS = {
    "norm1": "norm1",
    "norm2": "norm2",
    "proj": "attention.output.dense",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
# architecture → the tensor that tells it, under its authors' name or ours, and the shape of that
_SIGNS = {
    "efficientnet-lite0": (r"^(_conv_head|head\.conv)\.weight$", (1280, 320, 1, 1)),
    "tinyvit": (r"^(image_encoder\.)?layers\.2\.blocks\.0\.attn\.attention_biases$", (5, 196)),
    "lpips-alexnet": (r"^heads\.0$", (64,)),
    "dinov2-vits14": (r"^((\w+\.)?embeddings\.patch_embeddings\.projection|patch)\.weight$", (384, 3, 14, 14)),
}


def architecture_of(shapes: Mapping[str, Sequence[int]]) -> str | None:
    """Which of our networks a file with these tensors has the weights of; None: of none."""
    for architecture, (pattern, shape) in _SIGNS.items():
        if any(re.match(pattern, name) and tuple(found) == shape for name, found in shapes.items()):
            return architecture
    return None


def plan(architecture: str, names: Collection[str]) -> Plan:
    """Which tensors of a file make up each of ours. What a file lacks is missed later, when the network loads."""
    found = _PLANS[architecture](names)
    return {ours: theirs for ours, theirs in found.items() if not ours.endswith("num_batches_tracked")}


def _lite0(names: Collection[str]) -> Plan:
    renamed: Plan = {}
    for name in names:
        ours = name
        for pattern, replacement in _LITE0:
            ours = re.sub(pattern, replacement, ours)
        renamed[ours] = (name,)
    return {ours: theirs for ours, theirs in renamed.items() if not ours.startswith("_fc.")}  # the classifier


def _tinyvit(names: Collection[str]) -> Plan:
    ours = {name.removeprefix("image_encoder."): (name,) for name in names}
    return {name: theirs for name, theirs in ours.items() if re.match(r"patch_embed\.|layers\.[01]\.|layers\.2\.blocks\.", name)}


def _ours(names: Collection[str]) -> Plan:
    return {name: (name,) for name in names}


def _dinov2(names: Collection[str]) -> Plan:
    if "patch.weight" in names:
        return _ours(names)
    [first] = [name for name in names if name.endswith("embeddings.cls_token")]
    top = first.removesuffix("embeddings.cls_token")
    found: Plan = {"cls": (first,), "pos": (f"{top}embeddings.position_embeddings",)}
    for kind in ("weight", "bias"):
        found[f"patch.{kind}"] = (f"{top}embeddings.patch_embeddings.projection.{kind}",)
        found[f"norm.{kind}"] = (f"{top}layernorm.{kind}",)
        for i in range(DINOV2_BLOCKS):
            block = f"{top}encoder.layer.{i}"
            qkv = (f"{block}.attention.attention.{part}.{kind}" for part in ("query", "key", "value"))
            found[f"blocks.{i}.qkv.{kind}"] = tuple(qkv)
            found |= {f"blocks.{i}.{ours}.{kind}": (f"{block}.{theirs}.{kind}",) for ours, theirs in _DINOV2_PARTS.items()}
    for i in range(DINOV2_BLOCKS):
        for k in (1, 2):
            found[f"blocks.{i}.scale{k}"] = (f"{top}encoder.layer.{i}.layer_scale{k}.lambda1",)
    return found


_PLANS: dict[str, Callable[[Collection[str]], Plan]] = {
    "efficientnet-lite0": _lite0,
    "tinyvit": _tinyvit,
    "dinov2-vits14": _dinov2,
    "lpips-alexnet": _ours,
}
