//! The engine and the life cycle of its jobs over a toy model: events, their order, and release of all resources.

mod batch_invariance;
mod caching;
mod editing;
mod endless_streams;
mod failures;
mod jobs;
mod limits;
mod memory_pressure;
mod observer;
mod preemption;
mod resume;
mod resumed_texts;
mod scheduling;
mod segment_batching;
mod session;
mod slow_readers;
mod speculation;
mod summaries;
mod toy_model;
