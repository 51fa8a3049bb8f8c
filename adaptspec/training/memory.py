"""Keeping freed memory in the process while training on a CPU.

glibc gives every large tensor back to the kernel when it is freed and faults its pages in again at
the next step; at the recipe's sizes that is 10-15 % of the training time. Setting
MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=2000000000 before the start does the same as this.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1  # names and numbers of malloc.h
_M_MMAP_MAX = -4


def keep_freed_pages() -> bool:
    """Ask malloc to hold on to freed memory, for the whole process; False where it has no such setting."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
