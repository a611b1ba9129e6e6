"""The hub, by huggingface_hub (extra ``hub``), which knows the user's token and proxies."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from reshift.errors import UserError
from reshift.exchange.places import Place, hub_endpoint

ADVICE = {401: "log in with 'hf auth login', or set HF_TOKEN", 403: "the token may not do this", 404: "check the name"}


def api() -> Any:
    """A client of the hub that HF_ENDPOINT names."""
    if find_spec("huggingface_hub") is None:
        raise UserError("the hub needs: pip install 'reshift[hub]'")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # nobody needs to know what runs here
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    # By calls: the variables for these are read once, at the first import, which may have been elsewhere.
    disable_progress_bars()
    hub_logging.set_verbosity(logging.CRITICAL)  # what goes wrong is one line of ours
    return HfApi(endpoint=hub_endpoint(), library_name="reshift")


@contextmanager
def one_line(place: Place) -> Iterator[None]:
    """Whatever goes wrong between here and the hub is one line: its client raises errors of several libraries."""
    try:
        yield
    except UserError:
        raise
    except Exception as err:
        status = getattr(getattr(err, "response", None), "status_code", None)
        why = f"answered {status}" if status else (str(err).strip().splitlines() or [type(err).__name__])[0]
        raise UserError(
            f"{place.name}: {hub_endpoint() or 'the hub'} {why}; {ADVICE.get(status or 0, 'try again later')}"
        ) from err


def upload(place: Place, folder: Path, *, private: bool) -> None:
    """Make the repository if there is none, and replace what it holds in one commit."""
    client = api()
    with one_line(place):
        client.create_repo(place.name, private=private, exist_ok=True)
        revision = {} if place.revision == "main" else {"revision": place.revision}
        client.upload_folder(repo_id=place.name, folder_path=folder, commit_message="Push a reshift bundle", **revision)


def names(place: Place) -> tuple[list[str], str]:
    """The files of the repository, and the commit they are of: a push in between must not mix two bundles."""
    client = api()
    with one_line(place):
        info = client.repo_info(place.name, revision=place.revision)
        return [item.rfilename for item in info.siblings or []], str(info.sha)


def download(place: Place, commit: str, name: str, folder: Path) -> bytes:
    """One file; ``folder`` is for the client's own use."""
    client = api()
    with one_line(place):
        return Path(client.hf_hub_download(place.name, name, revision=commit, local_dir=folder)).read_bytes()
