//! Statistics and charts of measurements. `weir bench` and `weir-loadtest` share them.
//!
//! - [`stats`]: quantiles, medians, ratios of pairs, and the confidence interval of a gain
//! - [`histogram`]: histograms of times, with their percentiles
//! - [`mod@format`]: durations, numbers and text tables
//! - [`chart`]: the one chart renderer, which draws SVG

pub mod chart;
pub mod format;
pub mod histogram;
pub mod stats;
