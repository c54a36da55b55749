//! Reports the state of the server to the service manager: `Type=notify` of a systemd unit.

/// Reports that the server accepts calls to these models.
#[cfg(unix)]
pub(super) fn ready(models: &[String]) {
    use sd_notify::NotifyState;
    let status = format!("serving {}", crate::error::printable(&models.join(", ")));
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Reports that the server shuts down.
#[cfg(unix)]
pub(super) fn stopping() {
    notify(&[sd_notify::NotifyState::Stopping]);
}

/// Sends the states to the socket that `NOTIFY_SOCKET` names. Does nothing without that variable, as outside of systemd.
#[cfg(unix)]
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd is not notified: the socket in NOTIFY_SOCKET cannot be written");
    }
}

/// Does nothing: other systems have no systemd.
#[cfg(not(unix))]
pub(super) fn ready(_: &[String]) {}

/// Does nothing: other systems have no systemd.
#[cfg(not(unix))]
pub(super) fn stopping() {}
