"""Reports a command's wrong input in one line, as argparse does for arguments."""

import functools
import sys
from pathlib import Path


def plainly(main):
    """Wraps a command that reads and writes files. Training commands stay unwrapped: their errors need the whole traceback."""

    @functools.wraps(main)
    def command(*arguments):
        try:
            return main(*arguments)
        except (OSError, ValueError) as error:
            raise SystemExit(f"{Path(sys.argv[0]).name}: error: {error}") from error

    return command
