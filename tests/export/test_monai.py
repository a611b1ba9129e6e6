"""A MONAI bundle of ours passes MONAI's own check, and MONAI's own runner prints our score."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("monai", reason="monai is not installed")
# What MONAI's specification of bundles demands of metadata.json. The published schema has to be downloaded; MONAI takes a file
# that lies where it would be saved.
TENSOR = ["type", "format", "modality", "num_channels", "spatial_shape", "dtype", "value_range", "is_patch_data", "channel_def"]
TENSORS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "object", "required": TENSOR}}
SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["schema", "version", "monai_version", "pytorch_version", "numpy_version", "task", "description", "authors",
                 "copyright", "network_data_format"],
    "properties": {
        **{name: {"type": "string", "pattern": r"^\d+\.\d+"} for name in ("monai_version", "pytorch_version", "numpy_version")},
        "optional_packages_version": {"type": "object"},
        "required_packages_version": {"type": "object", "additionalProperties": {"type": "string"}},
        "network_data_format": {"type": "object", "required": ["inputs", "outputs"],
                                "properties": {"inputs": TENSORS, "outputs": TENSORS}},
    },
}  # fmt: skip
CODE = """
import sys
from monai.bundle import run, verify_metadata
verify_metadata(meta_file="configs/metadata.json", filepath=sys.argv[1])
run(config_file="configs/inference.json", meta_file="configs/metadata.json", image=sys.argv[2])
"""


def test_monai_verifies_and_runs_the_bundle(tiny_bundle: Path, folder_of_images: Path, tmp_path: Path) -> None:
    from reshift.export.folder import export
    from reshift.inference.model import load_model

    out, schema = tmp_path / "out", tmp_path / "schema.json"
    export(tiny_bundle, "monai", out)
    schema.write_text(json.dumps(SCHEMA))
    image = sorted(folder_of_images.iterdir())[0]
    command = [sys.executable, "-W", "ignore", "-c", CODE, str(schema), str(image)]
    done = subprocess.run(command, cwd=out, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "metadata is verified with no error" in done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    [expected] = load_model(tiny_bundle, "cpu").predict(image)
    assert found == {"input": str(image), "score": pytest.approx(expected.score, rel=1e-6), "p_value": expected.p_value,
                     "flag": expected.flag}  # fmt: skip
    [again] = load_model(out).predict(image)
    assert again.score == pytest.approx(expected.score, rel=1e-6)
