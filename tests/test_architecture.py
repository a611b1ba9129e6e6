"""The rules that keep the shape: who may import whom, no torch in ``--help``, small files and functions, clean style."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "reshift"

# Lowest first. A folder may import itself and everything below it; folders on one line do not know each other.
LAYERS = [
    "errors",
    "config",
    "evaluation.metrics core system",
    "weights",
    "nets",
    "kernels methods",
    "data datasets",
    "inference",
    "training",
    "evaluation",
    "reports",
    "bench pacs serve export exchange",
    "cli",
]
# What the layers alone would allow, and we do not.
NEVER = {"data": {"methods", "nets", "kernels", "core"}, "methods": {"system"}, "nets": {"system"}, "kernels": {"system"}}
NEIGHBOURS = {("datasets", "data")}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
FILES = sorted(PACKAGE.rglob("*.py"))


def folder(module: str) -> str:
    """``reshift.core.masks`` → ``core``; the package itself is ``""``."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if ".".join(parts[:2]) in LEVEL else parts[0] if parts else ""


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
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in whole if _is_module(name)} or {node.module}
    return found


def _is_module(name: str) -> bool:
    place = PACKAGE.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_layers(path: Path) -> None:
    here = folder(module_of(path))
    if here in ("", "__main__"):
        return  # the package's front door imports lazily; ``python -m reshift`` is the command line
    for name in imports(path):
        there = folder(name) if name.split(".")[0] == "reshift" else ""
        if there in ("", here):
            continue
        below = LEVEL[there] < LEVEL[here] and there not in NEVER.get(here, set())
        assert below or (here, there) in NEIGHBOURS, f"{here} may not import {there} ({name})"


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda p: p.name)
def test_core_imports_torch_and_nothing_else(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)} <= {"torch", "reshift"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "evaluation" / "metrics").glob("*.py")), ids=lambda p: p.name)
def test_metrics_need_numpy_alone(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)
    assert outside <= {"numpy", "reshift"}


def test_no_method_imports_another() -> None:
    """A method may use its own folder, ``ops`` and the protocol; ``reshift`` holds the paper's method whole."""
    shared = {"reshift.methods", "reshift.methods.detector", "reshift.methods.ops"}
    for path in (PACKAGE / "methods").rglob("*.py"):
        family = module_of(path).split(".")[:3]
        others = {name for name in imports(path) if name.startswith("reshift.methods")}
        others = {name for name in others if ".".join(name.split(".")[:3]) not in shared | {".".join(family)}}
        if path.parent.name == "reshift":
            others -= {name for name in others if name.startswith("reshift.methods.dmd")}
        assert not others, f"{path.name} imports {others}"


@pytest.mark.parametrize("code", ["import reshift", "import reshift.cli.app", "import reshift.methods, reshift.config"])
def test_import_needs_no_torch(code: str) -> None:
    check = f"{code}; import sys; assert not {{'torch', 'numpy', 'PIL'}} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.argv = ['reshift', '--help']\ntry:\n from reshift.cli import main; main()\nexcept SystemExit: pass\n"
    subprocess.run([sys.executable, "-c", f"{code}assert 'torch' not in sys.modules"], check=True, stdout=subprocess.DEVNULL)


FOLDERS = ("src", "tests", "benchmarks", "examples", "tools")
PYTHON = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300, "split the file"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 40, f"{node.name} is too long"


def test_no_pickle() -> None:
    """Nothing is pickled to disk or read from there; worker processes of ours exchange pickled messages through a pipe."""
    for path in FILES:
        text = path.read_text()
        assert "torch.load(" not in text, path
        pickles = "pickle" in {name.split(".")[0] for name in imports(path)}
        assert not pickles or path == PACKAGE / "system" / "workers.py", path
