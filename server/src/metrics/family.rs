//! A family of series that is rendered in the order of its labels.

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::{MetricType, TypedMetric},
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

/// Names and values of a series' labels.
pub(super) type Labels = Vec<(&'static str, String)>;

/// The series of one metric, by their labels. The client library's own family renders them in the random order of a hash map,
/// so that two scrapes of an idle server differ.
#[derive(Debug)]
pub(super) struct SortedFamily<M> {
    series: Arc<RwLock<BTreeMap<Labels, M>>>,
    /// Creates the metric of a new series.
    create: fn() -> M,
}

impl<M> Clone for SortedFamily<M> {
    fn clone(&self) -> Self {
        Self { series: Arc::clone(&self.series), create: self.create }
    }
}

impl<M: Default> Default for SortedFamily<M> {
    fn default() -> Self {
        Self::new(M::default)
    }
}

impl<M> SortedFamily<M> {
    pub(super) fn new(create: fn() -> M) -> Self {
        Self { series: Arc::default(), create }
    }

    /// Removes a series, if it exists.
    pub(super) fn remove(&self, labels: &Labels) {
        self.series.write().unwrap_or_else(PoisonError::into_inner).remove(labels);
    }
}

impl<M: Clone> SortedFamily<M> {
    /// Returns the series with these labels; creates it if it does not exist. Clones of a metric share its value.
    pub(super) fn get_or_create(&self, labels: &Labels) -> M {
        if let Some(metric) = self.series.read().unwrap_or_else(PoisonError::into_inner).get(labels) {
            return metric.clone();
        }
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        series.entry(labels.clone()).or_insert_with(self.create).clone()
    }
}

impl<M: EncodeMetric + TypedMetric> EncodeMetric for SortedFamily<M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, metric) in &*self.series.read().unwrap_or_else(PoisonError::into_inner) {
            metric.encode(encoder.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::{encoding::text, metrics::counter::Counter, registry::Registry};

    #[test]
    fn series_are_rendered_in_the_order_of_their_labels() {
        let family = SortedFamily::<Counter>::default();
        let labels = |value: u32| vec![("value", value.to_string())];
        // 32 series: a random order would be this one by chance in one of 32! runs
        for value in (10..42).rev() {
            family.get_or_create(&labels(value)).inc_by(u64::from(value));
        }
        family.get_or_create(&labels(10)).inc();
        family.remove(&labels(41));
        let mut registry = Registry::default();
        registry.register("a", "A", family);
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        let samples: Vec<_> = out.lines().filter(|line| !line.starts_with('#')).collect();
        let count = |value: u32| if value == 10 { 11 } else { value };
        let expected: Vec<_> = (10..41).map(|value| format!("a_total{{value=\"{value}\"}} {}", count(value))).collect();
        assert_eq!(samples, expected);
    }
}
