"""Brain masks that another program has made, found by name: HD-BET's and SynthStrip's, in folders like the data set's or in one.

``X_bet_mask.nii.gz`` and ``X_mask.nii.gz`` (HD-BET 1), ``X_bet.nii.gz`` (HD-BET 2, where it holds a mask), ``mask.nii.gz``,
``X_mask.nii.gz``, ``X_brainmask.nii.gz`` (SynthStrip's ``-m``; its user chooses the name). X and its folders must name the case,
as in ``test/Utrecht/1/pre/FLAIR_bet_mask.nii.gz``, ``Utrecht_1_mask.nii.gz`` or ``Utrecht-1/mask.nii.gz``.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from reshift.data.files import list_files
from reshift.data.nifti import read_nifti
from reshift.data.volume import Volume
from reshift.datasets.samples import check_same_grid
from reshift.errors import UserError

NAME = re.compile(r"^(?P<stem>.*?)(?P<mark>(brain|synthstrip)?[_.-]?mask|(?<=[_.-])bet)\.nii(\.gz)?$", re.IGNORECASE)
STAGES = ("pre", "orig")
# Words of a path that say how a mask was made or of what, not whose it is.
OTHER_WORDS = {*STAGES, "flair", "bet", "mask", "brain", "brainmask", "synthstrip", "hd", "stripped"}


class BrainMasks:
    """The masks in a folder."""

    def __init__(self, folder: Path, parts: Sequence[str]) -> None:
        if not folder.is_dir():
            raise UserError(f"--brain-masks {folder}: no such folder")
        self.folder, self.parts, self.used = folder, parts, set[Path]()
        self.found = [path for path in list_files(folder) if NAME.match(path.name)]
        if not self.found:
            raise UserError(f"--brain-masks {folder}: holds no *_mask.nii.gz, *_bet_mask.nii.gz or mask.nii.gz")

    def find(self, part: str, place: str, stage: str) -> Path:
        """The mask of the case ``place`` (``Utrecht/1``) of ``part``; a UserError says that there is none, or several."""
        wanted = _words(place)
        mine = [path for path in self.found if self._names(path, part, wanted)]
        mine = [path for path in mine if "mask" in path.name.lower()] or mine
        mine = [path for path in mine if stage in _all_words(path.relative_to(self.folder))] or mine
        if len(mine) != 1:
            names = " and ".join(path.relative_to(self.folder).as_posix() for path in mine[:2])
            raise UserError(f"--brain-masks has {f'several masks of it, {names}' if mine else 'no mask of it'}")
        self.used.add(mine[0])
        return mine[0]

    def unused(self) -> list[str]:
        """The masks that no case has asked for."""
        return [path.relative_to(self.folder).as_posix() for path in self.found if path not in self.used]

    def _names(self, path: Path, part: str, wanted: list[str]) -> bool:
        words = _all_words(path.relative_to(self.folder))
        parts = [word for word in words if word in self.parts]
        own = [word for word in words if word not in OTHER_WORDS and word not in self.parts]
        return own[-len(wanted) :] == wanted and (not part or not parts or parts[-1] == part)


def _all_words(path: Path) -> list[str]:
    match = NAME.match(path.name)
    return _words("/".join([*path.parent.parts, match["stem"] if match else path.name]))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def strip(volume: Volume, path: Path) -> Volume:
    """The volume with everything outside the brain set to 0, as BraTS has it."""
    mask = read_nifti(path)
    check_same_grid(volume, mask)
    brain = np.stack([mask.plane(k) for k in range(len(mask))])
    values = np.unique(brain)
    if len(values) > 2:
        raise UserError(f"{path}: holds {len(values)} grey values; a mask holds 0 and one other, is it the stripped image?")
    if values[-1] <= 0:
        raise UserError(f"{path}: the mask is empty")
    real = np.stack([volume.plane(k) for k in range(len(volume))])
    # Above 0, so that the darkest tissue is not background, and the background is exactly 0.
    low = float(real[brain > 0].min())
    stripped = np.where(brain > 0, real - min(low, 0.0), 0.0).astype(np.float32)
    return replace(volume, voxels=stripped, slope=1.0, intercept=0.0)
