"""Writes files atomically: a reader sees the old file or the new one."""

import os


def replace(path, data):
    """Writes text (as UTF-8) or bytes to a file next to `path`, which then replaces `path`."""
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)
    os.replace(partial, path)
