//! Connections below HTTP: accepted, identified, and closed.

mod adapted;
#[cfg(feature = "http")]
pub(super) mod admin_port;
#[cfg(feature = "http")]
pub(super) mod browser_checks;
mod connection_table;
pub(super) mod connections;
#[cfg(feature = "http")]
pub(super) mod cors;
mod frames;
#[cfg(feature = "http")]
pub(super) mod head_limit;
pub(super) mod http2;
pub(super) mod lifetime;
#[cfg(feature = "http")]
pub(super) mod lingering_close;
pub(super) mod listener;
mod plain_answers;
pub(super) mod serving;
mod settings_ack;
mod settings_limit;
mod tls_identity;
#[cfg(feature = "http")]
pub(super) mod upgrades;
