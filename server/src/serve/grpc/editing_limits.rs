//! The limits of editing sessions.

use crate::{config::EditingConfig, serve::middleware::call_limits::CallTable};
use std::sync::Arc;
use tokio::sync::Notify;

/// The limits of editing sessions, and the sessions in progress.
#[derive(Clone)]
pub(crate) struct EditingLimits {
    pub(super) config: EditingConfig,
    pub(super) sessions: Arc<CallTable>,
}

impl EditingLimits {
    /// Creates the limits of a server.
    pub(crate) fn new(config: EditingConfig) -> Self {
        Self { config, sessions: CallTable::new("editing sessions", config.sessions) }
    }
}

/// Activity of a client that its session does not see: messages of another protocol that cannot be read. An extension of the call.
/// Clones belong to the same session.
#[derive(Clone, Default)]
pub(in crate::serve) struct SessionActivity(Arc<Notify>);

impl SessionActivity {
    /// Delays the idle limit of the session.
    pub(in crate::serve) fn notify(&self) {
        self.0.notify_one();
    }

    /// Waits for activity. Cancel safe.
    pub(in crate::serve) async fn notified(&self) {
        self.0.notified().await;
    }
}
