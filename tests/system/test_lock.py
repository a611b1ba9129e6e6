"""One process at a time writes to a folder; a killed process leaves nothing that blocks the next one."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from reshift.errors import UserError
from reshift.system.lock import NAME, locked, output_folder

HOLD = """
import sys
from pathlib import Path
from reshift.system.lock import locked
sys.stdin.readline()
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def holder(folder: Path) -> "subprocess.Popen[str]":
    """A process that takes the lock at the first line it reads, and keeps it until the second."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def send_line(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def lock_in_a_thread(folder: Path) -> str:
    """What another thread is told that asks for the lock."""
    caught = list[str]()

    def work() -> None:
        try:
            with locked(folder):
                caught.append("")
        except UserError as err:
            caught.append(str(err))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    return caught[0]


def test_a_second_holder_is_refused_in_one_line(tmp_path: Path) -> None:
    with locked(tmp_path):
        message = lock_in_a_thread(tmp_path)
        assert message.startswith(f"{tmp_path}: process {os.getpid()} on ")
        assert "is writing there; wait until it ends, or choose another folder" in message
    assert (tmp_path / NAME).read_bytes() == b""  # a published folder does not name the computer
    with locked(tmp_path):
        pass


def test_of_many_processes_one_gets_the_lock_and_loses_it_when_killed(tmp_path: Path) -> None:
    many = [holder(tmp_path) for _ in range(4)]
    for process in many:
        send_line(process)
    said = [read_line(process) for process in many]
    assert sorted(said) == ["", "", "", "held\n"]
    owner = many[said.index("held\n")]
    with pytest.raises(UserError, match=f"process {owner.pid} on"), locked(tmp_path):
        pass
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # ended, but still in the process table
    with locked(tmp_path):
        assert f"process {os.getpid()}" in (tmp_path / NAME).read_text()
    for process in many:
        process.communicate()


def test_a_command_may_lock_its_folder_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with output_folder(tmp_path / "out"), locked(Path("out")):
        with locked(tmp_path / "out"):
            pass
        assert "is writing there" in lock_in_a_thread(tmp_path / "out")  # not freed by the inner one
    assert lock_in_a_thread(tmp_path / "out") == ""


def test_a_process_can_wait_for_the_lock(tmp_path: Path) -> None:
    order = list[str]()

    def second() -> None:
        with locked(tmp_path, wait=True):
            order.append("second")

    thread = Thread(target=second)
    with locked(tmp_path):
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(UserError, match=f"{NAME}: could not be written"), locked(tmp_path):
        pass


NO_LOCKS = "import fcntl, errno\ndef flock(*_):\n    raise OSError({number}, 'no locks')\nfcntl.flock = flock\n"


@pytest.mark.parametrize("number", ["errno.ENOSYS", "errno.ENOTSUP", "errno.ENOLCK"])
def test_a_file_system_without_locks(number: str, tmp_path: Path) -> None:
    """Some network file systems have none: a run goes on and is told, or falls back to the existence of a file."""
    code = f"{NO_LOCKS.format(number=number)}import warnings\nwarnings.simplefilter('always')\n{HOLD}"
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], input="\n\n", capture_output=True, text=True, check=False
    )
    assert process.stdout == "held\n", process.stderr
    assert process.returncode == 0
    with locked(tmp_path):  # nothing is left that blocks the next run
        pass


def test_other_failures_of_a_lock_are_one_line(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", NO_LOCKS.format(number="errno.EIO") + HOLD, str(tmp_path)],
        input="\n\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "UserError" in process.stderr
    assert f"{NAME}: could not be written (no locks)" in process.stderr
