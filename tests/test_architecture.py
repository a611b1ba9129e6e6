"""The rules that keep the shape: who may import whom, no torch in ``--help``, small files and functions, clean style."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "reshift"

# room → the rooms of ours it may import from. A top-level module is a room of its own.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "core": {"core"},
    "nets": {"core", "config", "errors", "nets"},
    "methods": {"core", "nets", "config", "errors", "methods", "progress"},
    "data": {"config", "cores", "errors", "data", "helping", "cachefolder", "runtime", "write", "percentiles"},
    "metrics": {"errors", "metrics"},
    "acquisition": {"config", "errors"},
    "calibrate": {"acquisition", "metrics", "config", "errors"},
    "normative": {"errors", "nets"},
    "write": {"errors"},
    "progress": set(),
    "runtime": {"errors"},
    "percentiles": set(),
    "picture": {"percentiles"},
    "results": {"errors", "methods", "metrics"},
    "figures": {"errors", "figures", "metrics", "picture", "results", "write"},
    "report": {"", "acquisition", "bundle", "methods", "metrics", "picture", "report", "results", "write"},
    "cachefolder": set(),
    "checkpoint": {"errors", "write"},
    "runlog": {"errors", "write", "checkpoint"},
    "bundle": {"", "methods", "calibrate", "config", "errors", "write"},
    "stagecache": {"errors", "write"},
    "halves": {"nets"},
    "adamw": {"adamw_triton", "halves"},
    "adamw_triton": set(),
    "optimise": {"adamw", "config", "halves", "methods", "nets", "runtime"},
    "train": {"cachefolder", "checkpoint", "config", "data", "errors", "halves", "methods", "optimise", "progress", "runlog",
              "runtime", "stagecache"},
    "predict": {"acquisition", "answer", "bundle", "calibrate", "config", "data", "errors", "metrics", "nets", "progress",
                "runtime"},
    "frames": set(),
    "answer": {"acquisition", "calibrate", "data"},
    "score": {"acquisition", "bundle", "data", "errors", "picture", "predict", "progress", "score_hands", "score_helper",
              "score_look", "score_picture", "score_volume", "scores", "write"},
    "score_look": {"predict", "score_hands", "score_helper", "score_picture"},
    "score_picture": {"acquisition", "answer", "calibrate", "config", "data", "picture", "score_volume", "scores", "write"},
    "score_helper": {"calibrate", "config", "errors", "helping", "score_picture", "scores"},
    "score_hands": {"cores", "data", "helping", "predict", "score_helper", "score_picture", "scores"},
    "cores": set(),
    "helping": {"cores", "errors", "frames"},
    "ray_cluster": {"", "cores", "errors", "write"},
    "score_ray": {"", "data", "errors", "methods", "predict", "ray_cluster", "score", "score_picture"},
    "scores": {"write"},
    "score_volume": {"answer", "calibrate", "data", "dicom_out", "errors", "picture", "predict", "progress", "write"},
    "evaluate": {"acquisition", "data", "errors", "metrics", "nets", "normative", "predict", "progress", "report", "write"},
    "dicom_out": {"", "data", "errors", "picture", "write"},
    "check": {"cores", "data", "errors", "progress"},
    "check_page": {"check", "data", "progress", "report"},
    "compare": {"errors", "methods", "metrics", "report", "results", "write"},
    "pipeline": {"", "acquisition", "bundle", "calibrate", "config", "data", "errors", "methods", "metrics", "predict", "runtime",
                 "train", "write"},
    "shiftbank": set(),
    "select": {"config", "data", "errors", "metrics", "pipeline", "predict", "progress", "shiftbank", "write"},
    "demo": {"data", "evaluate", "pipeline", "predict", "score", "write"},
    "datasets": {"", "config", "cores", "data", "datasets", "errors", "progress", "write"},
    "bench": {"", "bench", "bundle", "calibrate", "config", "data", "errors", "evaluate", "figures", "methods", "metrics",
              "cachefolder", "cores", "pipeline", "predict", "ray_cluster", "runtime", "train", "write"},
    "cli_bench": {"bench"},
    "cli_data": {"check", "check_page", "data", "datasets", "errors", "write"},
    "imports": set(),
    "cli": {"", "bundle", "cli_bench", "cli_data", "cli_info", "compare", "config", "data", "demo", "errors", "evaluate",
            "figures", "imports", "pipeline", "predict", "report", "results", "score", "score_ray", "select"},
    "cli_info": {"bundle", "imports", "methods"},
    "__main__": {"cli"},
    "": {"predict"},
}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {f"reshift.{path.stem}" for path in PACKAGE.iterdir()}


def room(module: str) -> str:
    """``reshift.core.masks`` → ``core``; the package itself is ``""``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_of(path: Path) -> str:
    parts = ("reshift", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Every module that ``path`` imports, anywhere in the file."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "reshift" else []
            found |= {name for name in whole if name in MODULES} or {node.module}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_import_rules(path: Path) -> None:
    here = room(module_of(path))
    assert here in ALLOWED, f"give {here} a row in ALLOWED"
    ours = {room(name) for name in imports(path) if name.split(".")[0] == "reshift"}
    assert ours <= ALLOWED[here], f"{path.name} may not import {sorted(ours - ALLOWED[here])}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda p: p.name)
def test_core_imports_torch_and_nothing_else(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)} <= {"torch", "reshift"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "metrics").glob("*.py")), ids=lambda p: p.name)
def test_metrics_need_numpy_alone(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)
    assert outside <= {"numpy", "reshift"}


def test_no_method_imports_another() -> None:
    parts = ("detector", "pixel_diffusion", "dmd_settings", "reshift_settings", "shifts", "annotations")
    shared = {"reshift.methods", *(f"reshift.methods.{part}" for part in parts)}
    allowed = {"reshift.py": {"reshift.methods.dmd"}}  # the successor holds the paper's method and uses it from outside
    for path in (PACKAGE / "methods").glob("*.py"):
        others = {name for name in imports(path) if name.startswith("reshift.methods")} - shared - allowed.get(path.name, set())
        assert not others, f"{path.name} imports {others}"


@pytest.mark.parametrize("code", ["import reshift", "import reshift.cli", "import reshift.methods, reshift.config"])
def test_import_needs_no_torch(code: str) -> None:
    check = f"{code}; import sys; assert not {{'torch', 'numpy', 'PIL'}} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.argv = ['reshift', '--help']\ntry:\n from reshift.cli import main; main()\nexcept SystemExit: pass\n"
    subprocess.run([sys.executable, "-c", f"{code}assert 'torch' not in sys.modules"], check=True, stdout=subprocess.DEVNULL)


PYTHON = [path for folder in ("src", "tests", "benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300, "split the file"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 40, f"{node.name} is too long"


def test_no_pickle() -> None:
    for path in FILES:
        text = path.read_text()
        assert "torch.load(" not in text, path
        assert "pickle" not in {name.split(".")[0] for name in imports(path)}, path


@pytest.mark.parametrize("tool", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=" ".join)
def test_style(tool: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
