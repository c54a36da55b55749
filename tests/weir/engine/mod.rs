//! The engine and the life cycle of its jobs over a toy model: events, their order, and release of all resources.

mod caching;
mod editing;
mod limits;
mod resume;
mod scheduling;
mod session;
mod toy_model;
