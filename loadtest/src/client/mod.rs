//! The server as a client sees it: connections, and the descriptions of its models.

pub mod connection;
pub mod models;
