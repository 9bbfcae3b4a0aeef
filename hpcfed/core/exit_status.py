"""Exit statuses of the commands, for batch scripts."""

DONE = 0  # also if ranks died and the others continued
# a bug of hpcfed, with a traceback; a rank's death with run.on_fault = "stop"; or, of a sweep or of
# watched runs, a run that failed
FAULT = 1
WRONG = 2  # a mistake in job, data or files, with one message
HUNG = 70  # ended by the watchdog; continue with --resume
# EX_TEMPFAIL: stopped by a signal and saved, by a rank's death, or by a disk that has no room now;
# continue with --resume
RESUME_ME = 75


def as_shells_count(status: int) -> int:
    """Return a child's status as a shell reports it: 128 + signal if a signal killed it."""
    return status if status >= 0 else 128 - status
