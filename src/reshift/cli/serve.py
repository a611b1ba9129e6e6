"""``reshift serve``."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from reshift.cli.shared import Device
from reshift.errors import UserError

Store = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="where jobs are kept; default: DATA/.reshift-serve, or runs/serve without --data"),
]
Keep = Annotated[str | None, typer.Option(metavar="7d", help="delete jobs so long after their end; default: never")]
ProxyHeader = Annotated[
    str | None, typer.Option(metavar="NAME", help="trust a reverse proxy, which alone can reach this port, to name the user here")
]


def serve(
    models: Annotated[Path, typer.Option(metavar="DIR", help="folder of bundles or runs, or one bundle")] = Path("runs"),
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="images that jobs may name by their path")] = None,
    host: Annotated[str, typer.Option(help="any other than loopback needs a token")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port")] = 8000,
    token_file: Annotated[Path | None, typer.Option(metavar="F", help="a line 'NAME TOKEN' per user")] = None,
    keep: Keep = None,
    store: Store = None,
    device: Device = "auto",
    max_upload: Annotated[str, typer.Option(metavar="SIZE", help="of one job")] = "4G",
    max_files: Annotated[int, typer.Option(min=1, help="of one job")] = 5_000,
    max_queued: Annotated[int, typer.Option(min=1, help="jobs that may wait")] = 1_000,
    rate: Annotated[float, typer.Option(min=0, help="requests per second and token; 0: no limit")] = 200.0,
    proxy_header: ProxyHeader = None,
) -> None:
    """Serve a page and a REST API: drop images, see heat-maps. OpenAPI at /docs."""
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "python_multipart")):
        raise UserError("the server needs: pip install 'reshift[serve]'")
    from reshift.serve.app import serve as run
    from reshift.serve.settings import Limits, Settings, parse_duration, parse_size, read_tokens

    settings = Settings(
        models=models, data=data, host=host, port=port, tokens=read_tokens(token_file) if token_file else {},
        proxy_header=proxy_header, keep=parse_duration(keep) if keep else None, device=device,
        store=store or (data / ".reshift-serve" if data else Path("runs/serve")),
        limits=Limits(upload_bytes=parse_size(max_upload), files=max_files, queued=max_queued, rate=rate),
    )  # fmt: skip
    run(settings, lambda address: typer.echo(f"reshift serves {address} (for research; Ctrl-C ends it)"))
