"""Which signals ask a process to end."""

import signal


def ending_signals() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP of a closed terminal unless it is ignored, as it is after ``nohup``."""
    return [signal.SIGTERM] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGTERM, signal.SIGHUP]
