//! `weir-loadtest`: measures over gRPC the latency that clients of a weir server see.
//!
//! The modules follow a measurement: `cli` parses the command line; `client` connects; `load` decides which requests to send and
//! when, and sends them; `measure` turns timestamps into figures; `comparison` compares models request by request; `knee` finds
//! the highest sustained rate; `report` writes the results as JSON, table and HTML. `stub` is a server with scripted delays,
//! which tests of this program measure.

pub mod cli;
pub mod client;
pub mod comparison;
pub mod error;
pub mod knee;
pub mod load;
pub mod measure;
pub mod report;
pub mod stub;
mod units;
