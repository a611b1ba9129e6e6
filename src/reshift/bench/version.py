"""Which program made a result: a hash of the code that can change it, comments and docstrings aside.

A method's own files count for that method alone, so that work on one leaves the results of the others valid.
"""

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from reshift.methods import METHODS

PACKAGE = Path(__file__).parent.parent
ROOMS = ("data", "evaluation/metrics")  # every file counts
MODULES = (
    "config", "bench.work", "evaluation.evaluate", "evaluation.normative", "inference.acquisition", "inference.bundle",
    "inference.calibration", "inference.model", "methods.detector", "nets.features", "nets.lpips", "nets.norm", "system.device",
    "training.loop", "training.run", "training.step",
)  # fmt: skip
FOLLOWED = (
    "reshift.methods.",
    "reshift.nets.",
    "reshift.core.",
    "reshift.kernels.",
)  # imports that a method's code is looked up by


@cache
def code_version(method: str) -> str:
    """The hash for results of ``method``."""
    return _hash(_shared() | _own(method))


@cache
def everything() -> str:
    """The hash over all methods: what stages that several of them share are kept under."""
    return hashlib.sha256("".join(code_version(name) for name in METHODS).encode()).hexdigest()[:16]


def files_version(pattern: str) -> str:
    """The hash of some files of the package."""
    return _hash(set(PACKAGE.glob(pattern)))


def _hash(paths: set[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        name = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else path.name
        digest.update(f"{name}\0{_code(path)}\0".encode())
    return digest.hexdigest()[:16]


def code_of(text: str) -> str:
    """The program without docstrings, blank lines and lines of comment; not by ``ast.dump``, which differs between Pythons."""
    dropped = set[int]()
    for node in ast.walk(ast.parse(text)):
        first = node.body[0] if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            dropped |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = (line.rstrip() for number, line in enumerate(text.splitlines(), start=1) if number not in dropped)
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


@cache
def _code(path: Path) -> str:
    return code_of(path.read_text(encoding="utf-8"))


@cache
def _shared() -> set[Path]:
    files = {path for room in ROOMS for path in (PACKAGE / room).glob("*.py")}
    return files.union(*(_closure(f"reshift.{name}") for name in MODULES))


def _own(method: str) -> set[Path]:
    location = f"reshift.methods.{METHODS[method].location}" if method in METHODS else method
    return _closure(location.partition(":")[0])


def _closure(module: str) -> set[Path]:
    """The module's file and, through its imports, the networks, equations and parts of methods behind it."""
    found, waiting = dict[str, Path](), [module]
    while waiting:
        name = waiting.pop()
        path = _path(name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += [other for other in _imported(path) if other.startswith(FOLLOWED)]
    return set(found.values())


def _path(module: str) -> Path | None:
    if module.startswith("reshift."):
        path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        return path if path.is_file() else None
    spec = find_spec(module)
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


@cache
def _imported(path: Path) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    inner = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}  # a name may be a module, too
    return inner | {str(node.module) for node in nodes}
