"""The parts list of what is installed: ``python tools/sbom.py > dist/reshift.cdx.json`` (CycloneDX 1.5, beside the wheel).

``--table`` prints the licences as docs/licences.md has them. What is listed is what ``reshift`` and the extras named on the
command line need, as far as it is installed here.
"""

import argparse
import json
import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("log", "features", "dicom", "report", "ray", "export", "hub", "pacs", "serve")
# As some packages write their licence → its SPDX name.
SPDX = {
    "apache software license": "Apache-2.0", "apache license 2.0": "Apache-2.0", "apache 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "apache license version 2.0": "Apache-2.0", "apache": "Apache-2.0",
    "apache 2": "Apache-2.0", "mit license": "MIT", "the mit license": "MIT", "mit": "MIT", "bsd license": "BSD-3-Clause",
    "bsd": "BSD-3-Clause", "bsd 3-clause": "BSD-3-Clause", "3-clause bsd license": "BSD-3-Clause", "bsd-3": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause", "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "isc license (iscl)": "ISC",
    "python software foundation license": "PSF-2.0", "psf": "PSF-2.0", "dual license": "Apache-2.0 OR BSD-3-Clause",
}  # fmt: skip
# May be used by and shipped beside Apache-2.0 code. MPL-2.0 covers its own files only, and we change none of them.
COMPATIBLE = {
    *("Apache-2.0", "MIT", "MIT-0", "MIT-CMU", "HPND", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC", "PSF-2.0", "Python-2.0"),
    *("MPL-2.0", "Zlib", "Unlicense", "CC0-1.0", "BSL-1.0", "LicenseRef-LEADTOOLS"),
}


def dependencies(name: str = "reshift", extras: tuple[str, ...] = EXTRAS) -> dict[str, Distribution]:
    """Every installed distribution that ``name`` needs, directly or not, itself included."""
    found: dict[str, Distribution] = {}
    waiting = [(name, frozenset(extras))]
    seen = set[tuple[str, frozenset[str]]]()
    while waiting:
        item = waiting.pop()
        key = canonicalize_name(item[0])
        try:
            one = found.get(key) or distribution(item[0])
        except PackageNotFoundError:  # of another platform, or an extra that is not installed
            continue
        found[key] = one
        if item in seen:
            continue
        seen.add(item)
        for text in one.requires or ():
            needed = Requirement(text)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *item[1])):
                waiting.append((needed.name, frozenset(needed.extras)))
    return dict(sorted(found.items()))


def licence(one: Distribution) -> str:
    """The SPDX expression of a distribution's licence; "unknown" if it does not say."""
    about: Any = one.metadata  # a message of headers
    if expression := about.get("License-Expression"):
        return str(expression)
    stated = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License :: ")]
    for text in (*stated, (about.get("License") or "").strip().partition("\n")[0]):
        if compatible(text):
            return str(text)
        if known := SPDX.get(text.lower().removeprefix("osi approved :: ")):
            return known
    return "unknown"


def compatible(expression: str) -> bool:
    """Whether all parts of an "and", and one part of an "or", are compatible with Apache-2.0."""
    choices = re.split(r"\s+OR\s+", expression.replace("(", " ").replace(")", " "))
    return any(all(part.split(" WITH ")[0].strip() in COMPATIBLE for part in re.split(r"\s+AND\s+", one)) for one in choices)


def sbom(found: dict[str, Distribution]) -> dict[str, Any]:
    """The parts list as CycloneDX has it; the same packages give the same list."""
    parts = [_component(one, "application" if name == "reshift" else "library") for name, one in found.items()]
    root = next(part for part in parts if part["name"] == "reshift")
    others = [part for part in parts if part is not root]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": root}, "components": others}


def _component(one: Distribution, kind: str) -> dict[str, Any]:
    name, version = canonicalize_name(one.metadata["Name"]), one.version
    link = f"pkg:pypi/{name}@{version}"
    return {
        "type": kind,
        "bom-ref": link,
        "name": name,
        "version": version,
        "purl": link,
        "licenses": [{"expression": licence(one)}],
    }


def main() -> None:
    """Print the list."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--extras", default=",".join(EXTRAS))
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    found = dependencies(extras=tuple(args.extras.split(",")))
    if args.table:
        print("| package | licence |\n|---|---|")
        print("\n".join(f"| {name} | {licence(one)} |" for name, one in found.items()))
    else:
        print(json.dumps(sbom(found), indent=1))


if __name__ == "__main__":
    main()
