//! Signals that shut the server down.

use tokio::sync::watch;

/// Counts shutdown signals: SIGTERM and Ctrl-C.
#[cfg(unix)]
pub(super) fn signals() -> std::io::Result<watch::Receiver<usize>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
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

/// Counts shutdown signals: Ctrl-C.
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

/// Waits until `count` signals have arrived.
pub(super) async fn received(mut signals: watch::Receiver<usize>, count: usize) {
    if signals.wait_for(|seen| *seen >= count).await.is_err() {
        // The counting task is gone, so no signal will arrive.
        std::future::pending().await
    }
}
