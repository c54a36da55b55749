//! From moments to figures: the clock of one request, histograms of all, objectives, the course of time, and what the tester
//! itself took.

pub mod meter;
pub mod objective;
pub mod record;
pub mod shortening;
pub mod spread;
pub mod summaries;
pub mod tester;
pub mod watch;
