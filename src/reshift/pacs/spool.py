"""Where series lie between the archive and the model: a folder each, of bounded total size."""

import shutil
from pathlib import Path
from threading import Condition, Event

from reshift.errors import UserError
from reshift.system.files import writing

UNFINISHED = ".unfinished-"  # beginning of the name of a folder that is being filled


class SpoolFullError(UserError):
    """The spool could not be written."""


class Spool:
    """Folders that are complete, and how many bytes they hold."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._sizes = dict[str, int]()
        self._changed = Condition()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def begin(self, name: str) -> Path:
        """An empty folder to fill."""
        folder = self.folder / f"{UNFINISHED}{name}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir()
        except OSError as err:
            raise SpoolFullError(f"the spool could not be written ({err.strerror}); make room") from None
        return folder

    def give_up(self, name: str) -> None:
        """Remove what was begun."""
        shutil.rmtree(self.folder / f"{UNFINISHED}{name}", ignore_errors=True)

    def finish(self, name: str, size: int) -> Path:
        """Give a filled folder its name."""
        target = self.folder / name
        shutil.rmtree(target, ignore_errors=True)
        with writing(target):
            (self.folder / f"{UNFINISHED}{name}").replace(target)
        self.take(name, size)
        return target

    def take(self, name: str, size: int) -> None:
        """Count a folder that is complete."""
        with self._changed:
            self._sizes[name] = size

    def has(self, name: str, size: int) -> bool:
        """Whether an earlier run left this series complete: a power cut may have emptied files."""
        return size > 0 and folder_size(self.folder / name) == size

    def remove(self, name: str) -> None:
        """Forget a series that was scored."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        with self._changed:
            self._sizes.pop(name, None)
            self._changed.notify_all()

    def wait_for_room(self, stop: Event, *, empty: bool = False) -> None:
        """Wait until less than the limit is used, or nothing at all; the end of the run ends the wait."""
        with self._changed:
            while not stop.is_set() and (bool(self._sizes) if empty else sum(self._sizes.values()) >= self.limit):
                self._changed.wait(0.2)

    def clean(self, keep: set[str]) -> None:
        """Remove what a killed run left behind, except the series to ``keep``."""
        for path in self.folder.iterdir():
            if path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)


def folder_size(folder: Path) -> int:
    """Bytes of the files in a folder; 0 where there is none."""
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0
