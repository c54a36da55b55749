//! Requests and their timing: texts, lengths, workloads, arrivals, and the loops that send requests.

pub mod arrivals;
pub mod driver;
pub mod generate;
pub mod length;
pub mod pacer;
pub mod schedule;
pub mod settings;
mod summarize;
pub mod text;
pub mod workload;
