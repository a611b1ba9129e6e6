"""Get one file from the Hugging Face hub, or from the mirror that ``HF_ENDPOINT`` names."""

import os
from pathlib import Path

from reshift.weights.registry import Hub

SECONDS = 10.0  # to wait for an answer


class UnavailableError(Exception):
    """A place that does not have a file, or cannot be reached; its text says why."""


def fetch_hub(source: Hub, folder: Path) -> Path:
    """Download into ``folder``. What an interrupted download left there is taken up again."""
    try:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    except ImportError:
        raise UnavailableError("huggingface_hub is not installed (pip install 'reshift[hub]')") from None
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        url = hf_hub_url(source.repo, source.file, revision=source.revision, endpoint=endpoint)
        get_hf_file_metadata(url, token=False, timeout=SECONDS)  # without a hub this fails at once; a download tries for long
        # No token: the files are public, and a mirror is nobody to show it to.
        path = hf_hub_download(
            source.repo, source.file, revision=source.revision, local_dir=folder, endpoint=endpoint, token=False
        )
        return Path(path)
    except Exception as err:  # of many kinds, from several libraries
        raise UnavailableError(first_line(err) or type(err).__name__) from None


def first_line(err: object) -> str:
    """The beginning of a long message."""
    return next((line.strip() for line in str(err).splitlines() if line.strip()), "")[:160]
