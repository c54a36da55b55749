//! The engine and the life of one job, over a toy model: what is told, in what order, and that everything is given back.

mod batch_invariance;
mod caching;
mod endless_streams;
mod failures;
mod jobs;
mod limits;
mod memory_pressure;
mod observer;
mod preemption;
mod resume;
mod scheduling;
mod segment_batching;
mod session;
mod slow_readers;
mod summaries;
mod toy_model;
