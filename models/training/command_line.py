"""Reports invalid input of a command in one line, as argparse does for arguments."""

import functools
import sys
from pathlib import Path


def one_line_errors(main):
    """Wraps a command that reads and writes files. Training commands are not wrapped: their errors need the traceback."""

    @functools.wraps(main)
    def command(*arguments):
        try:
            return main(*arguments)
        except (OSError, ValueError) as error:
            raise SystemExit(f"{Path(sys.argv[0]).name}: error: {error}") from error

    return command
