//! The log of a server: its flags, and the thread that writes it, so that a slow or closed stderr never stops a request.

use crate::cli::output::ColorChoice;
use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder};
use tracing_subscriber::EnvFilter;
use weir_server::config::{Announce, Checks};

/// Flags of the log.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Log")]
pub(super) struct LogArgs {
    /// Log filter: a level, or `target=level` directives separated by commas. The log goes to stderr.
    #[arg(long, value_name = "FILTER", env = "WEIR_LOG", default_value = "info")]
    log: String,
    /// Log format: text or json.
    #[arg(long, value_name = "FORMAT", env = "WEIR_LOG_FORMAT", default_value = "text")]
    log_format: String,
}

impl LogArgs {
    /// Starts the log, with `writer` as its way to stderr. Called first, so that later checks can log.
    pub(super) fn start(&self, writer: &LogWriter, color: ColorChoice, checks: &mut Checks) -> Announce {
        let filter = EnvFilter::try_new(&self.log).unwrap_or_else(|error| {
            checks.reject("--log", &self.log, format!("a level such as info, or target=level directives ({error})"));
            EnvFilter::default()
        });
        let color = color.is_on(&io::stderr());
        let log = tracing_subscriber::fmt().with_ansi(color).with_env_filter(filter);
        let writer = LogWriter { color, ..writer.clone() };
        let log = log.with_writer(move || writer.clone()).log_internal_errors(false);
        // The standard library would write to stderr itself, which may block.
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        // A log that is already running stays in place.
        match self.log_format.as_str() {
            "text" => {
                let _ = log.try_init();
            }
            "json" => {
                let _ = log.json().try_init();
                return Announce::Event;
            }
            other => checks.reject("--log-format", other, "one of text, json"),
        }
        Announce::Line
    }
}

/// Maximum lines that wait to be written; more are dropped.
const MAX_QUEUED_LINES: usize = 4096;

/// Maximum time that the process waits for queued lines, before it announces its addresses and before it ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between checks that all lines are written.
const FINISH_INTERVAL: Duration = Duration::from_millis(5);

/// Queues log lines for the thread that writes them to stderr. Never blocks and never returns an error: a pipe that nobody reads, a closed
/// one, or a full disk costs log lines, which are counted, and nothing else.
#[derive(Clone)]
pub(super) struct LogWriter {
    queue: NonBlocking,
    /// True if lines have escape codes for colours.
    color: bool,
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
        Self { queue, color: false, lines }
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
            thread::sleep(FINISH_INTERVAL);
        }
    }
}

impl Write for LogWriter {
    /// Queues a whole line. Characters in it that would end the line or change a terminal are escaped as in JSON: lines quote clients.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.logged.fetch_add(1, Ordering::Relaxed);
        let escaped = escaped(line, self.color);
        self.queue.write(escaped.as_bytes()).map(|_| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Escapes the control characters of a line, and those that reorder text, except for the line's end and, with `color`, colours.
fn escaped(line: &[u8], color: bool) -> Cow<'_, str> {
    let line = String::from_utf8_lossy(line);
    let is_harmful = |c: char| {
        c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
    };
    let body = line.strip_suffix('\n').unwrap_or(&line);
    if !body.contains(is_harmful) {
        return line;
    }
    let mut escaped = String::with_capacity(line.len() + 64);
    for (at, c) in body.char_indices() {
        let is_color = || {
            let code = body[at..].strip_prefix("\u{1b}[").unwrap_or_default();
            code.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m')
        };
        match c {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c if is_harmful(c) && !(color && is_color()) => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => escaped.push(c),
        }
    }
    escaped.push_str(&line[body.len()..]);
    escaped.into()
}

/// Writes to stderr, and counts the lines that it took. Never returns an error.
struct CountingWriter {
    stderr: io::Stderr,
    lines: Arc<LineCounts>,
}

impl Write for CountingWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let count = if self.stderr.write_all(line).is_ok() { &self.lines.written } else { &self.lines.failed };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logged_text_stays_in_its_line() {
        let line = |text: &str, color| escaped(text.as_bytes(), color).into_owned();
        assert_eq!(line("path=größe 模型\n", false), "path=größe 模型\n");
        assert_eq!(line("a\r\nforged\u{1b}[31m\u{2028}\u{202e}\n", false), "a\\r\\nforged\\u001b[31m\\u2028\\u202e\n");
        assert_eq!(line("\u{1b}[2mtime\u{1b}[0m \u{1b}[2J\n", true), "\u{1b}[2mtime\u{1b}[0m \\u001b[2J\n");
        assert_eq!(escaped(b"{\"a\":\"\xff\"}\n", false), "{\"a\":\"\u{fffd}\"}\n");
    }
}
