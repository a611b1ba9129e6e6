"""``reshift cache``: what is kept between runs, and how to be rid of it."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from reshift.cli.shared import AsJson
from reshift.errors import UserError
from reshift.system.cache import VARIABLE, cache_folder, cache_usage, size_text
from reshift.system.cache import prune as remove

SECONDS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}

cache = typer.Typer(name="cache", help="List or clear what is kept between runs.", no_args_is_help=True)


@cache.command("list")
def list_cache(as_json: AsJson = False) -> None:
    """Show how much trained stages, prepared images, converted bundles and weights take."""
    folder = _folder()
    found = cache_usage(folder)
    if as_json:
        kinds = {kind: {"files": one.files, "bytes": one.size, "last_used": round(one.used)} for kind, one in found.items()}
        typer.echo(json.dumps({"folder": str(folder), "kinds": kinds}, indent=1))
        return
    typer.echo(f"{folder}: {size_text(sum(one.size for one in found.values())) if found else 'empty'}")
    for kind, one in found.items():
        used = datetime.fromtimestamp(one.used, UTC).date()
        typer.echo(f"  {kind:10} {one.files:8} files {size_text(one.size):>10}   last used {used}")


@cache.command("prune")
def prune_cache(
    older_than: Annotated[str, typer.Option(metavar="30d", help="not used for so long; 12h, 30d, 4w; 0d: all")] = "30d",
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="only stages, prepared, converted or weights")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be removed")] = False,
) -> None:
    """Remove what was not used for a while. Downloaded weights go only with --kind weights."""
    folder, found = _folder(), re.fullmatch(r"(\d+)([hdw])", older_than)
    if found is None:
        raise UserError(
            f"--older-than '{older_than}' is not a time; use a number of hours, days or weeks, such as 12h, 30d or 4w"
        )
    known = cache_usage(folder)
    if kind is not None and kind not in known:
        raise UserError(f"--kind '{kind}': the cache has no such files; it has {', '.join(known) or 'none at all'}")
    gone = remove(folder, int(found[1]) * SECONDS[found[2]], kind, dry_run=dry_run)
    typer.echo(f"{'would remove' if dry_run else 'removed'} {gone.files} files, {size_text(gone.size)}: {folder}")


def _folder() -> Path:
    folder = cache_folder("auto")
    if folder is None:
        raise UserError(f"{VARIABLE}=off: nothing is kept; set it to a folder, or unset it")
    return folder
