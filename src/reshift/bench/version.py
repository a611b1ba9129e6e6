"""Which code made a result: a hash of the source files that a cell runs, without comments and docstrings.

The files are found by following imports from the module that computes cells and from the method's own module. A change to one
method therefore leaves the results of the others valid.
"""

import ast
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from reshift.methods import METHODS

PACKAGE = Path(__file__).parent.parent
START = ("reshift.bench.compute", "reshift.bench.observe")
# What schedules, writes or shows results does not change them. Everything else that is imported counts.
IGNORED = (
    "reshift.bench.", "reshift.reports.", "reshift.cli.", "reshift.errors.", "reshift.system.cache.", "reshift.system.cores.",
    "reshift.system.files.", "reshift.system.lock.", "reshift.system.progress.", "reshift.system.workers.",
)  # fmt: skip


@cache
def code_version(method: str) -> str:
    """The hash for results of ``method``."""
    location = f"reshift.methods.{METHODS[method].location}" if method in METHODS else method
    kernels = (PACKAGE / "kernels").glob("*.py")  # they are imported by name, so no import statement leads to them
    return hash_files({*imported_files([*START, location.partition(":")[0]]), *kernels})


@cache
def all_methods_version() -> str:
    """The hash over all methods, under which trained stages that several of them share are cached."""
    return hashlib.sha256("".join(code_version(name) for name in METHODS).encode()).hexdigest()[:16]


def hash_files(paths: Iterable[Path]) -> str:
    """Hash the names and the code of source files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        name = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else path.name
        digest.update(f"{name}\0{_code(path)}\0".encode())
    return digest.hexdigest()[:16]


def imported_files(modules: Sequence[str]) -> set[Path]:
    """The files of ``modules`` and of all modules of this package that they import, directly or not, apart from IGNORED."""
    found, waiting = dict[str, Path | None](), list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found:
            path = found[name] = _path(name)
            waiting += [other for other in (_imports(path) if path else ()) if _is_ours(other)]
    return {path for name, path in found.items() if path and (name in modules or not f"{name}.".startswith(IGNORED))}


def _is_ours(module: str) -> bool:
    """Whether a module belongs to this package. The list of methods is left out, since a new method changes no other one."""
    return module.startswith("reshift.") and module != "reshift.methods"


def _path(module: str) -> Path | None:
    if module.startswith("reshift."):
        place = PACKAGE.joinpath(*module.split(".")[1:])
        return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
    spec = find_spec(module)
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


@cache
def _imports(path: Path) -> set[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}  # a name may be a module, too
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def strip_code(text: str) -> str:
    """Remove docstrings, blank lines and comment lines. ``ast.dump`` would differ between versions of Python."""
    dropped = set[int]()
    for node in ast.walk(ast.parse(text)):
        first = node.body[0] if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            dropped |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = (line.rstrip() for number, line in enumerate(text.splitlines(), start=1) if number not in dropped)
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


@cache
def _code(path: Path) -> str:
    return strip_code(path.read_text(encoding="utf-8"))
