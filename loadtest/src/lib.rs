//! `weir-loadtest`: what clients of a weir server see, measured over gRPC.
//!
//! The map, in the order of a measurement: `cli` reads what is asked for; `client` connects; `load` decides what is asked of the
//! server and when, and makes the requests; `measure` turns moments into figures; `pair` compares models request by request;
//! `knee` tells which rate is sustained; `report` keeps what came out, as JSON, table and HTML. `stub` is a server that makes
//! delays instead of text, for testing this program.

pub mod cli;
pub mod client;
pub mod comparison;
pub mod error;
pub mod knee;
pub mod load;
pub mod measure;
pub mod report;
pub mod stub;
pub mod units;
