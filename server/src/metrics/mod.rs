//! All metrics, declared once: the tables in `series` hold each one's name, kind, buckets, labels and help.
//!
//! Names are vLLM's where it has one that `promtool check metrics` accepts, under the prefix `weir_`; vLLM's token is a
//! character here. A [`Meter`] observes one engine: its series are looked up when the model is loaded, so a step looks up
//! and allocates nothing. One exception: when a request ends, the series of its levels of chunking are looked up. Counters
//! that an engine keeps itself are read on each scrape ([`Metrics::render`]).

mod edits;
mod family;
mod histogram;
pub(crate) mod latency_windows;
mod levels;
mod meter;
mod registry;
mod series;
mod totals;

pub(crate) use edits::EditEvent;
pub use meter::Meter;
pub use registry::Metrics;
pub(crate) use totals::{CountAndTime, RequestTotals};
