//! Requests and their timing: texts, lengths, workloads, arrivals, and the loops that send requests.

pub mod arrivals;
pub mod driver;
mod edit;
mod generate;
pub(crate) mod length;
pub mod mix;
pub mod schedule;
pub(crate) mod settings;
mod summarize;
pub(crate) mod text;
pub mod typing;
pub mod workload;
