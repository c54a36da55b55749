"""Shows the progress of a run in one line, with tqdm if it is installed."""

import sys

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None


class Progress:
    """Counts `unit`s up to `total`. A terminal gets a moving line; a log file gets at most one line a minute."""

    def __init__(self, total, initial, unit):
        self.total, self.done, self.unit, self.note = total, initial, unit, ""
        quiet = not sys.stderr.isatty()
        interval = 60 if quiet else 0.5
        self.bar = tqdm(total=total, initial=initial, unit=unit, mininterval=interval, maxinterval=interval) if tqdm else None
        self.shown = None

    def to(self, done, note):
        done = min(int(done), self.total)
        if self.bar is not None:
            self.bar.set_postfix_str(note, refresh=False)
            self.bar.update(done - self.done)
        elif self.shown is None or done - self.shown >= max(1, self.total // 100):
            print(f"{done}/{self.total} {self.unit}  {note}", file=sys.stderr, flush=True)
            self.shown = done
        self.done = done

    def close(self):
        if self.bar is not None:
            self.bar.close()
