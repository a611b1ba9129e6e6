"""Where trained stages and prepared images are kept from one run to the next."""

import os
from pathlib import Path

VARIABLE = "RESHIFT_CACHE"


def cache_folder(setting: str) -> Path | None:
    """``train.cache`` → a folder; None: nothing is kept."""
    if setting == "auto":
        setting = os.environ.get(VARIABLE, "") or str(Path.home() / ".cache" / "reshift")
    return None if setting == "off" else Path(setting)
