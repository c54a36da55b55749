//! Connections below HTTP: accepted, identified, and closed.

pub(crate) mod admin_port;
pub(crate) mod connections;
mod filters;
pub(crate) mod http1;
pub(crate) mod http2;
