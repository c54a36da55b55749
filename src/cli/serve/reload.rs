//! Reads certificates and keys again at each SIGHUP.

use crate::{
    config::{Checks, CredentialFiles, LiveCredentials},
    error::{Error, Result},
    serve::Engines,
};
use std::time::Duration;

/// Maximum time for reading the files, for example from a network that hangs.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Replaces the credentials of a running server.
pub(super) struct Reloader {
    pub(super) files: CredentialFiles,
    /// The credentials in use.
    pub(super) live: LiveCredentials,
    /// Its metrics count the reloads.
    pub(super) engines: Engines,
}

impl Reloader {
    /// Reloads at each SIGHUP from now on. Signals that arrive during a reload cause one more.
    #[cfg(unix)]
    pub(super) fn start(self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangups = signal(SignalKind::hangup())?;
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                self.reload().await;
            }
        });
        Ok(())
    }

    /// Does nothing: other systems have no such signal.
    #[cfg(not(unix))]
    pub(super) fn start(self) -> std::io::Result<()> {
        Ok(())
    }

    /// Reads all files and replaces all credentials together. After any error the old ones stay in use.
    #[cfg_attr(not(unix), expect(dead_code, reason = "only a signal causes a reload"))]
    async fn reload(&self) {
        if self.files.is_empty() {
            tracing::info!("SIGHUP: the settings name no certificates and keys to read again");
            return;
        }
        let files = self.files.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut checks = Checks::default();
            let credentials = files.read(&mut checks);
            checks.finish().map(|()| credentials)
        });
        let read: Result<_> = match tokio::time::timeout(READ_TIMEOUT, read).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => Err(Error::Internal("reading the files panicked".into())),
            Err(_) => Err(Error::Setting(format!("the files were not read within {READ_TIMEOUT:?}"))),
        };
        let succeeded = read.is_ok();
        match read {
            Ok(credentials) => {
                tracing::info!(keys = ?credentials.keys, tls = credentials.tls.is_some(), "reloaded certificates and keys");
                self.live.replace(credentials);
            }
            Err(error) => {
                let error = error.to_string().replace('\n', ";");
                tracing::error!(error, "certificates and keys were not reloaded: the old ones stay in use");
            }
        }
        // Last, so that an observer of the metric finds the new credentials in use.
        self.engines.metrics().count_credential_reload(succeeded);
    }
}
