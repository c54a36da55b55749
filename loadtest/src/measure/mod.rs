//! Figures of a load: the timer of one request, histograms over all requests, objectives, the timeline, and the load of the tester
//! itself.

pub mod counters;
pub mod histogram;
pub mod objective;
pub mod request_timer;
pub mod shortening;
pub mod stats;
pub mod summaries;
pub mod tester;
pub mod timeline;
