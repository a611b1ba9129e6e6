"""The one exception for what a user can cause and mend."""


class UserError(Exception):
    """A mistake with a remedy: one line that names the file or setting and says what to do. The CLI then exits 2."""


class Stopped(UserError):  # noqa: N818 (stopping is no error)
    """The user stopped a long run; what was done is kept. The CLI then exits 130, as shells expect of Ctrl-C."""


def reason(err: BaseException) -> str:
    """What to record about a case that failed: our own lines as they are, anything else with its type."""
    return str(err) if isinstance(err, UserError) else f"{type(err).__name__}: {err}"
