//! All metrics, declared once: the tables in `series` hold each one's name, kind, buckets, labels and help.
//!
//! Names are vLLM's where it has one that `promtool check metrics` accepts, under the prefix `weir_`; vLLM's token is a
//! character here. A [`Meter`] takes the events of one engine: from each follow the metrics and the latency report
//! (`latency_windows`). Its series are looked up when the model is loaded, so a step looks up and allocates nothing. One
//! exception: when a request ends, the series of its levels of chunking are looked up. Only gauges are read on each scrape
//! ([`Metrics::render`]).

pub(crate) mod latency_windows;
mod meter;
mod registry;
mod series;

pub(crate) use crate::metrics::{
    meter::EditEvent,
    series::{CountAndTime, RequestTotals},
};
pub use crate::metrics::{meter::Meter, registry::Metrics};
