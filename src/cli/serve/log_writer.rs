//! The log's way to stderr: a thread writes the lines that all others queue, so that logging never waits and never fails.
//!
//! A pipe that nobody reads, a closed one, or a full disk costs log lines, which are counted, and nothing else.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder};

/// Maximum lines that wait to be written; more are dropped.
const MAX_QUEUED_LINES: usize = 4096;
/// Maximum time that the process waits for queued lines, before it announces its addresses and before it ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks that all lines are written.
const FINISH_INTERVAL: Duration = Duration::from_millis(5);

/// Queues log lines for the thread that writes them. Never blocks and never returns an error.
#[derive(Clone)]
pub(super) struct LogWriter {
    queue: NonBlocking,
    lines: Arc<LineCounts>,
}

/// Lines since the log started.
#[derive(Default)]
struct LineCounts {
    logged: AtomicU64,
    written: AtomicU64,
    /// Lines that stderr did not take.
    failed: AtomicU64,
}

impl LogWriter {
    /// Starts the thread, which runs until the process ends.
    pub(super) fn start() -> Self {
        let lines = Arc::<LineCounts>::default();
        let stderr = CountingWriter { stderr: io::stderr(), lines: Arc::clone(&lines) };
        let builder =
            NonBlockingBuilder::default().lossy(true).buffered_lines_limit(MAX_QUEUED_LINES).thread_name("log");
        let (queue, guard) = builder.finish(stderr);
        // Dropping the guard may write to stdout, which may block. `finish` waits for the lines instead.
        std::mem::forget(guard);
        Self { queue, lines }
    }

    /// Returns the number of lines dropped so far: the queue was full, or stderr did not take them.
    pub(super) fn dropped_lines(&self) -> u64 {
        self.lines.failed.load(Ordering::Relaxed).saturating_add(self.queue.error_counter().dropped_lines() as u64)
    }

    /// Waits until all lines are written or dropped, at most a second.
    #[expect(
        clippy::disallowed_methods,
        reason = "the writing thread never waits for this thread, which has nothing else to do"
    )]
    pub(super) fn finish(&self) {
        let started = Instant::now();
        let finished = || {
            let written = self.lines.written.load(Ordering::Relaxed);
            written.saturating_add(self.dropped_lines()) >= self.lines.logged.load(Ordering::Relaxed)
        };
        while !finished() && started.elapsed() < FINISH_TIMEOUT {
            std::thread::sleep(FINISH_INTERVAL);
        }
    }
}

impl Write for LogWriter {
    /// Queues a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.logged.fetch_add(1, Ordering::Relaxed);
        self.queue.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes to stderr, and counts the lines that it took. Never returns an error.
struct CountingWriter {
    stderr: io::Stderr,
    lines: Arc<LineCounts>,
}

impl Write for CountingWriter {
    /// Writes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let count = if self.stderr.write_all(line).is_ok() { &self.lines.written } else { &self.lines.failed };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
