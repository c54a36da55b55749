//! From moments to figures: the clock of one request, histograms of all, objectives, the course of time, and what the tester
//! itself took.

pub mod counters;
pub mod histogram;
pub mod objective;
pub mod request_timer;
pub mod shortening;
pub mod stats;
pub mod summaries;
pub mod tester;
