//! A histogram that is rendered only after its first observation.

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::{MetricType, TypedMetric, histogram::Histogram},
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// A histogram whose series are absent from the text until it has an observation. A model has many histograms of dozens of buckets
/// each, and some of them never apply to it.
#[derive(Debug, Clone)]
pub(super) struct ObservedHistogram {
    histogram: Histogram,
    has_observations: Arc<AtomicBool>,
}

impl ObservedHistogram {
    pub(super) fn new(buckets: impl IntoIterator<Item = f64>) -> Self {
        Self { histogram: Histogram::new(buckets), has_observations: Arc::default() }
    }

    pub(super) fn observe(&self, value: f64) {
        self.histogram.observe(value);
        self.has_observations.store(true, Ordering::Release);
    }
}

impl EncodeMetric for ObservedHistogram {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        if self.has_observations.load(Ordering::Acquire) { self.histogram.encode(encoder) } else { Ok(()) }
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for ObservedHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::{encoding::text, registry::Registry};

    #[test]
    fn series_begin_with_the_first_observation() {
        let histogram = ObservedHistogram::new([1.0, 2.0]);
        let mut registry = Registry::default();
        registry.register("a", "A", histogram.clone());
        let samples = || {
            let mut out = String::new();
            text::encode(&mut out, &registry).unwrap();
            assert!(out.contains("# HELP a A.\n# TYPE a histogram\n"), "{out}");
            out.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(samples(), Vec::<String>::new());
        histogram.observe(1.5);
        let all =
            ["a_sum 1.5", "a_count 1", "a_bucket{le=\"1.0\"} 0", "a_bucket{le=\"2.0\"} 1", "a_bucket{le=\"+Inf\"} 1"];
        assert_eq!(samples(), all);
    }
}
