"""Files that people name: read whole, and only if they have an end."""

import os
import stat

MAX_FILE_BYTES = 1 << 26
"""The size of a file that is read."""


def read_file(file: str | os.PathLike[str], most: int = MAX_FILE_BYTES) -> str:
    """Read a text in UTF-8, with or without a byte order mark.

    Args:
        file: the name of the file.
        most: the most bytes that it may have.

    Raises:
        OSError: if the file cannot be read, or is a folder.
        ValueError: for a pipe, a device, a larger file, and other bytes.
    """
    with open(file, "rb", opener=_open) as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            raise ValueError(f"{file}: expected a regular file, got a pipe or a device")
        data = source.read(most + 1)
    return decode_text(data, file, most)


FileState = tuple[str, int, int, int]
"""The name of a file, and what changes with its content."""


def state_of(file: str) -> FileState:
    """Return the state of a file, of zeros if there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return file, 0, 0, 0
    return file, found.st_ino, found.st_size, found.st_mtime_ns


def decode_text(data: bytes, file: object, most: int) -> str:
    """Decode what was read of a file; see ``read_file``."""
    if len(data) > most:
        raise ValueError(f"{file}: expected at most {most:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"expected UTF-8, got the byte 0x{data[error.start]:02x} at {error.start:,}"
        raise ValueError(f"{file}: {what}") from None


def _open(file: str, flags: int) -> int:
    """Open a file. The opening of a pipe would wait for somebody who writes into it."""
    return os.open(file, flags | getattr(os, "O_NONBLOCK", 0))
