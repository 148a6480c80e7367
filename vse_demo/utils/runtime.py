"""Settings of the whole process that make PyTorch faster on CPUs.

They are nothing that a library may do to the program that imports it, so importing changes nothing: our own programs
call `tune_process` first, and others may. PyTorch is not imported here, because one of the settings counts only
before it is.
"""

import ctypes
import os
import sys

SPIN_COUNT = "10000"  # about a tenth of a millisecond
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
KEPT_BYTES = 2**31 - 1  # the largest int: free memory that is kept at the end of the heap


def tune_process() -> None:
    """Tune this process for PyTorch on a CPU: shorter waits of its threads, and memory that is kept.

    After each operation the threads of OpenMP (GCC's library, which PyTorch uses on Linux) wait for the next one by
    spinning, for milliseconds, on cores that the operations of `vse_demo.ops` could use. Waiting a tenth of a
    millisecond does as well. This counts only if PyTorch is not loaded yet, so call this function first; a
    GOMP_SPINCOUNT that is already set is left alone.

    The C library (glibc) gives large blocks of memory back to the system as soon as they are free, and gets each page
    anew, filled with zeros, for the next batch. Here it is told to keep them: encoding pictures is then 1.4 to 1.6
    times as fast in batches of 32, and 1.1 times alone (docs/speed.md). The price is that memory stays with the
    process until it ends. This part works at any time, also after PyTorch is loaded, and does nothing where the C
    library is another one (Alpine Linux, macOS, Windows).

    >>> tune_process()
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    keep_memory()


def keep_memory() -> bool:
    """Tell glibc to keep the memory that this process frees, instead of giving it back to the system.

    Returns:
        Whether it could be told: False where there is no glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):  # musl has a mallopt that does nothing, or none
        return False
    return bool(library.mallopt(M_MMAP_MAX, 0)) and bool(library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
