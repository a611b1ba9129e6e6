"""What makes an exported folder a MONAI bundle: ``configs/metadata.json`` and ``configs/inference.json``."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from reshift import __version__
from reshift.inference.bundle import Bundle
from reshift.system.files import atomic_json, writing

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
MONAI = "1.6.1"  # the version that our tests use
READ = "Path(path), @settings"
JUDGE = "float(@inferer(batch['image'], @network)[0][0]), batch['image'][0].numpy(), @calibration, @settings"


def write_configs(folder: Path, bundle: Bundle) -> None:
    """Write both files; the model lies in ``models/`` already."""
    with writing(folder):
        (folder / "configs").mkdir(exist_ok=True)
    atomic_json(folder / "configs" / "metadata.json", metadata(bundle))
    atomic_json(folder / "configs" / "inference.json", inference())


def metadata(bundle: Bundle) -> dict[str, Any]:
    """The content of metadata.json, by MONAI's specification of bundles."""
    data = bundle.config.data
    shape, channels = [data.size, data.size], range(data.channels)
    image = _tensor(data.channels, shape, [-1, 1], {str(c): "grey" if data.channels == 1 else "RGB"[c] for c in channels})
    heatmap = _tensor(1, shape, [], {"0": "how unlike normal images each pixel is"})
    score = {**_tensor(1, [1], [], {"0": "how unlike normal images the image is"}), "type": "tuples", "format": "series"}
    return {
        "schema": SCHEMA, "version": __version__, "changelog": {__version__: "exported by reshift"},
        "monai_version": _version("monai", MONAI), "pytorch_version": _version("torch"), "numpy_version": _version("numpy"),
        "required_packages_version": {"pillow": _version("pillow")}, "optional_packages_version": {},
        "name": f"Reshift {bundle.config.method}",
        "task": "Anomaly detection in medical images after training on normal images only",
        "description": f"Method '{bundle.config.method}': score and heat-map of what is unlike normal images; see README.md",
        "authors": "whoever trained it with reshift", "copyright": "see whoever shared it",
        "intended_use": "research; not a medical device",
        "network_data_format": {"inputs": {"image": image}, "outputs": {"score": score, "heatmap": heatmap}},
    }  # fmt: skip


def _tensor(channels: int, shape: list[int], values: list[int], meaning: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "image", "format": "magnitude", "modality": "n/a", "num_channels": channels, "spatial_shape": shape,
        "dtype": "float32", "value_range": values, "is_patch_data": False, "channel_def": meaning,
    }  # fmt: skip


def inference() -> dict[str, Any]:
    """The content of inference.json: one JSON line per image, as run.py prints it. To be run in the bundle's own folder."""
    return {
        "imports": ["$import json", "$import torch", "$from pathlib import Path", "$import run as images"],
        "bundle_root": ".",
        "image": "image.png",
        "settings": "$json.loads(Path(@bundle_root, 'prepare.json').read_text())",
        "calibration": "$json.loads(Path(@bundle_root, 'calibration.json').read_text())",
        "network": "$torch.export.load(Path(@bundle_root, 'models/model.pt2')).module()",
        "inferer": {"_target_": "SimpleInferer"},
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "Lambdad", "keys": "image",
                 "func": f"$lambda path: images.prepare(*images.read_image({READ}), @settings)"},
                {"_target_": "EnsureTyped", "keys": "image", "track_meta": False},
            ],
        },
        "dataset": {
            "_target_": "Dataset",
            "data": "$[{'image': path, 'input': path} for path in ([@image] if isinstance(@image, str) else @image)]",
            "transform": "@preprocessing",
        },
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1, "num_workers": 0},
        "run": [
            "$[print(json.dumps({'input': batch['input'][0], **images.judge(" + JUDGE + ")})) for batch in @dataloader]",
        ],
    }  # fmt: skip


def _version(package: str, otherwise: str = "") -> str:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return otherwise
