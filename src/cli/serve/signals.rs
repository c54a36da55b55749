//! The signals that end the server.

use tokio::sync::watch;

/// Counts the signals that ask for an end: SIGTERM where there is such a thing, and Ctrl-C.
#[cfg(unix)]
pub(super) fn signals() -> std::io::Result<watch::Receiver<usize>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            count.send_modify(|count| *count += 1);
        }
    });
    Ok(counted)
}

/// Counts the signals that ask for an end: Ctrl-C.
#[cfg(not(unix))]
pub(super) fn signals() -> std::io::Result<watch::Receiver<usize>> {
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            count.send_modify(|count| *count += 1);
        }
    });
    Ok(counted)
}

/// Waits for so many signals.
pub(super) async fn reached(mut signals: watch::Receiver<usize>, count: usize) {
    if signals.wait_for(|seen| *seen >= count).await.is_err() {
        // Nobody counts any more, so no signal will come.
        std::future::pending().await
    }
}
