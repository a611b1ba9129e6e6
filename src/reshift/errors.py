"""The exception for mistakes that a user can make and correct."""

import re

# Control characters, line ends and changes of direction: a stranger's file name could move the cursor, or fake a line.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class UserError(Exception):
    """A user's mistake: one line that names the file or setting and says what to do. The exit code is then 2."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    """``text`` as one line that is safe to print: what a file holds or is called is quoted in messages."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


class Stopped(UserError):  # noqa: N818 (it is not an error)
    """The user stopped a long run; finished work is kept. The exit code is then 130, as for Ctrl-C."""


def reason(err: BaseException) -> str:
    """The text to record for a case that failed: our own messages as they are, others with their type."""
    return str(err) if isinstance(err, UserError) else f"{type(err).__name__}: {err}"
