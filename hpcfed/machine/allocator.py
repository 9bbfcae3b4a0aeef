"""Settings of the C library's allocator for training, whose steps all use the same large blocks."""

import ctypes
from contextlib import suppress

MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2  # parameters of mallopt, malloc.h


def keep_memory() -> None:
    """Let glibc keep freed memory instead of returning it to the system.

    With another C library nothing happens.
    By default a freed block of some MiB goes back at once, and the next step's costs a page fault
    for each 4 KiB: 9 to 20 % of a step of the paper's four architectures. Up to 2 GiB on top of the
    heap stay; peak memory grows by less than a tenth.
    """
    with suppress(OSError, AttributeError):  # no glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(TOP_PAD, 64 << 20)
