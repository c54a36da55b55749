//! Figures of a load: the timer of one request, histograms over all requests, objectives, the timeline, and the load of the tester
//! itself.

pub(crate) mod counters;
pub(crate) mod edits;
pub mod histogram;
pub(crate) mod keystrokes;
pub(crate) mod limits;
pub mod objective;
pub(crate) mod request_timer;
pub(crate) mod shortening;
pub mod stats;
pub(crate) mod summaries;
pub(crate) mod tester;
pub(crate) mod timeline;
