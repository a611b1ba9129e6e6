"""One run at a time in a folder; a crash leaves no lock that anyone has to remove."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reshift.bench.lock import NAME, identity, locked
from reshift.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from reshift.bench.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def write_lock(folder: Path, **changes: Any) -> None:
    (folder / NAME).write_text(json.dumps(identity(os.getpid()) | changes))


def test_the_lock_is_there_while_it_is_held_and_gone_after(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [NAME]
        with pytest.raises(UserError, match=f"another run \\(process {os.getpid()}\\) is at work there"), locked(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_holder_loses_it(tmp_path: Path) -> None:
    process = holder(tmp_path)
    with pytest.raises(UserError, match=f"process {process.pid}"), locked(tmp_path):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / NAME).exists()
    with locked(tmp_path):
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_a_dead_process_that_nobody_waited_for_is_dead(tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table
    with locked(tmp_path):
        pass
    process.wait()


def test_another_process_with_the_same_number_does_not_hold_it(tmp_path: Path) -> None:
    write_lock(tmp_path, began="another boot 1234")
    with locked(tmp_path):
        pass


def test_a_lock_of_another_host_is_left_to_the_user(tmp_path: Path) -> None:
    write_lock(tmp_path, host="elsewhere")
    with pytest.raises(UserError, match=rf"on elsewhere; if that is gone, delete .*{NAME}"), locked(tmp_path):
        pass
    assert json.loads((tmp_path / NAME).read_text())["host"] == "elsewhere"
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_lock_without_contents_is_that_of_a_crash(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with locked(tmp_path):
        pass


def test_of_many_at_once_one_gets_it(tmp_path: Path) -> None:
    write_lock(tmp_path, began="another boot 1234")
    waiting = "import sys; sys.stdin.readline()\n" + HOLD
    many = [
        subprocess.Popen([sys.executable, "-c", waiting, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                         stderr=subprocess.DEVNULL)
        for _ in range(6)
    ]  # fmt: skip
    for process in many:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = []
    for process in many:
        assert process.stdout is not None
        said.append(process.stdout.readline())
    assert sorted(said) == [""] * 5 + ["held\n"]
    owner = many[said.index("held\n")]
    assert json.loads((tmp_path / NAME).read_text())["pid"] == owner.pid
    owner.kill()
    for process in many:
        process.communicate()
