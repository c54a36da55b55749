//! The limits of editing sessions.

use crate::{config::EditingConfig, serve::middleware::call_limits::CallTable};
use std::sync::Arc;

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
