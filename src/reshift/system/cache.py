"""Find the folder in which trained stages and prepared images are kept between runs."""

import os
from pathlib import Path

VARIABLE = "RESHIFT_CACHE"


def cache_folder(setting: str) -> Path | None:
    """Return the folder that ``train.cache`` names; None if nothing is kept."""
    if setting == "auto":
        setting = os.environ.get(VARIABLE, "") or str(Path.home() / ".cache" / "reshift")
    return None if setting == "off" else Path(setting)
