"""The one exception for what a user can cause and mend."""


class UserError(Exception):
    """A mistake with a remedy: one line that names the file or setting and says what to do. The CLI exits 2 without a traceback."""
