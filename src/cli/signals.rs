//! The signals that ask a command to end: SIGINT (Ctrl-C) and, on Unix, SIGTERM.

use std::io;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers of the signals.
#[cfg(unix)]
pub(super) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

#[cfg(unix)]
impl EndSignals {
    /// Installs the handlers. Must run within a runtime. Fails if the operating system refuses them.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next signal. Returns its number.
    pub(super) async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
        }
    }
}

/// Handlers of Ctrl-C.
#[cfg(not(unix))]
pub(super) struct EndSignals;

#[cfg(not(unix))]
impl EndSignals {
    /// Never fails: the first wait installs the handler.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    /// Waits for the next Ctrl-C. Returns the number of SIGINT.
    pub(super) async fn next(&mut self) -> i32 {
        const INTERRUPT: i32 = 2;
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        INTERRUPT
    }
}

/// Ends the process without waiting for any other thread.
#[expect(clippy::disallowed_methods, reason = "destructors would wait for threads, which may hang or wait for input")]
pub(super) fn exit(code: i32) -> ! {
    std::process::exit(code)
}
