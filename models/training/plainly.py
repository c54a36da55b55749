"""Commands tell what is wrong with what they were given in a line, as argparse does of arguments."""

import functools
import sys
from pathlib import Path


def plainly(main):
    """For commands that read and write and do not train: of an error within a training step the whole story is wanted."""

    @functools.wraps(main)
    def command(*arguments):
        try:
            return main(*arguments)
        except (OSError, ValueError) as error:
            raise SystemExit(f"{Path(sys.argv[0]).name}: error: {error}") from error

    return command
