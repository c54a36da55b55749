//! The server as a client reaches it: connections, and what it says of its models.

pub mod connection;
pub mod models;
mod probe;
