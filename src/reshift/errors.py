"""The exception for mistakes that a user can make and correct."""


class UserError(Exception):
    """A user's mistake: one line that names the file or setting and says what to do. The exit code is then 2."""


class Stopped(UserError):  # noqa: N818 (it is not an error)
    """The user stopped a long run; finished work is kept. The exit code is then 130, as for Ctrl-C."""


def reason(err: BaseException) -> str:
    """The text to record for a case that failed: our own messages as they are, others with their type."""
    return str(err) if isinstance(err, UserError) else f"{type(err).__name__}: {err}"
