"""``reshift export``."""

from pathlib import Path
from typing import Annotated

import typer

from reshift.cli.shared import BundlePath, unpack
from reshift.system.imports import heavy_imports

To = Annotated[str, typer.Option("--to", metavar="onnx|openvino|torch|monai", help="format of the exported model")]
Normals = Annotated[
    Path | None,
    typer.Option("--data", help="normals to compare bundle and export with, besides shifts of them; default: drawn phantoms"),
]


def export(
    bundle: BundlePath,
    to: To,
    out: Annotated[Path, typer.Option("--out", help="new folder")],
    data: Normals = None,
) -> None:
    """Export a bundle for other runtimes (extra: export), with a script that needs no reshift.

    Both models then score normals and synthetic shifts; an export that differs is refused.
    """
    with heavy_imports():
        from reshift.export.folder import export as run
        from reshift.export.parity import ParityError

    try:
        found = run(bundle, to, out, None if data is None else unpack(data)).summary()
    except ParityError as err:
        for line in err.table:
            typer.echo(line, err=True)
        raise
    score = f"score {found['largest_score_difference']:.2g} (allowed {found['score_tolerance']:.2g})"
    heatmap = f"heat-map {found['largest_map_difference']:.2g} (allowed {found['map_tolerance']:.2g})"
    typer.echo(f"largest difference over {found['images']} images: {score}, {heatmap}; flags agree")
    typer.echo(f"exported: {out}")
