"""``reshift pull``: a bundle from the hub, a URL or a folder, checked file by file before any of it is kept."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from reshift.errors import UserError
from reshift.exchange import hub
from reshift.exchange.files import CHECKSUMS, IGNORED, MAX_LIST, REMEDY, parse_list, refuse_strangers, verify
from reshift.exchange.places import Place
from reshift.inference.bundle import load_bundle
from reshift.system.files import writing

TIMEOUT = 60  # seconds without a byte
Fetch = Callable[[str, int], bytes]  # name of a file, and the most bytes it may have


def pull(place: Place, out: Path) -> Path:
    """Download into a folder beside ``out`` and rename it when everything is there and right."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already; choose another --out, or delete it")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as aside:
        folder = Path(aside) / "bundle"
        folder.mkdir()
        fetch = _source(place, Path(aside) / "client")
        listed = parse_list(place.name, fetch(CHECKSUMS, MAX_LIST))
        for name, about in listed.items():
            data = fetch(name, about.size)
            verify(place.name, name, data, about)
            with writing(out / name):
                (folder / name).write_bytes(data)
        load_bundle(folder)  # whole files can still be those of another version
        with writing(out):
            folder.replace(out)
    return out


def _source(place: Place, aside: Path) -> Fetch:
    if place.kind == "url":
        return partial(_from_url, place.name)
    if place.kind == "folder":
        _refuse(place, [path.name for path in Path(place.name).iterdir()] if Path(place.name).is_dir() else None)
        return partial(_from_folder, Path(place.name))
    names, commit = hub.names(place)
    _refuse(place, names)
    return lambda name, _: hub.download(place, commit, name, aside)


def _refuse(place: Place, names: list[str] | None) -> None:
    if names is None:
        raise UserError(f"{place.name}: no such folder")
    refuse_strangers(place.name, names)
    if CHECKSUMS not in set(names) - set(IGNORED):
        raise UserError(f"{place.name}: has no {CHECKSUMS}; {REMEDY}")


def _from_folder(folder: Path, name: str, most: int) -> bytes:
    try:
        with (folder / name).open("rb") as file:
            return file.read(most + 1)
    except OSError as err:
        raise UserError(f"{folder / name}: cannot be read ({err.strerror})") from None


def _from_url(address: str, name: str, most: int) -> bytes:
    try:
        asked = Request(f"{address}/{name}", headers={"User-Agent": "reshift"})
        with urlopen(asked, timeout=TIMEOUT) as answer:  # nosec B310
            data: bytes = answer.read(most + 1)
            return data
    except HTTPError as err:
        raise UserError(f"{address}/{name}: the server answered {err.code}; check the address") from None
    except (URLError, OSError, ValueError) as err:
        why = getattr(err, "reason", None) or err
        raise UserError(f"{address}/{name}: could not be downloaded ({why}); try again") from None
