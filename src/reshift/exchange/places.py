"""Where a bundle can be: a folder, a plain URL, or a repository on the hub."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from reshift.errors import UserError

REPOSITORY = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)


class Place(NamedTuple):
    """What the user named."""

    kind: str  # "folder", "url" or "hub"
    name: str
    revision: str = "main"


def parse_place(text: str) -> Place:
    """``./folder``, ``https://…`` or ``owner/name@revision``; a folder that exists is a folder."""
    if text.startswith(("http://", "https://")):
        return Place("url", text.rstrip("/"))
    if "://" in text:
        raise UserError(f"{text}: only http and https addresses can be read")
    if text.startswith(("/", "./", "../", "~")) or Path(text).is_dir():
        return Place("folder", str(Path(text).expanduser()))
    found = REPOSITORY.fullmatch(text)
    if found is None:
        raise UserError(f"{text}: neither a folder (./{text}), nor an address, nor a repository on the hub (owner/name)")
    return Place("hub", found["name"], found["revision"] or "main")


def last_part(place: Place) -> str:
    """A name for the bundle on this disk."""
    return re.sub(r"[^\w.-]", "-", place.name.rstrip("/").rpartition("/")[2]).strip(".-") or "bundle"


def hub_endpoint() -> str | None:
    """The hub's address, if HF_ENDPOINT names another than the public one."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
