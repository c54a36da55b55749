//! Ways in which the tester may have distorted a measurement, as its figures show them.

use super::{
    request_timer::TOGETHER,
    stats::RequestFigures,
    tester::{MAX_CPU_SHARE, MAX_LAG_SHARE, TesterFigures},
};
use crate::{client::connection::TESTER_CODE, units::time};

/// Way in which the tester may have distorted a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TesterLimit {
    /// It used most of the processor time of its threads.
    Busy,
    /// Requests waited for its limit on requests in flight.
    Held,
    /// Its HTTP/2 library ended requests.
    EndedRequests,
    /// It saw events late, compared with the times that it measured.
    Late,
}

/// Figures of requests that show whether the tester was the limit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LimitEvidence {
    /// Requests that the tester's own library ended.
    pub(crate) ended_by_tester: u64,
    /// Median time to first character, in nanoseconds.
    pub(crate) median_first: Option<f64>,
    /// Median gap, in nanoseconds. Absent if it is that of messages that came together: such gaps are not the server's.
    pub(crate) median_gap: Option<f64>,
}

impl TesterLimit {
    /// Returns the limits that a report states for a measurement. `requests` has the figures of each model.
    pub fn of(tester: &TesterFigures, requests: &[&RequestFigures]) -> Vec<Self> {
        // a report states none if the server ended the measurement
        if tester.limits.is_empty() { Vec::new() } else { LimitEvidence::of(requests).limits(tester) }
    }
}

impl LimitEvidence {
    /// Collects the evidence from the figures of each model. Medians are those of the fastest one, which the tester distorts most.
    pub(crate) fn of(requests: &[&RequestFigures]) -> Self {
        let fastest = |figure: fn(&RequestFigures) -> Option<f64>| {
            requests.iter().filter_map(|figures| figure(figures)).min_by(f64::total_cmp)
        };
        Self {
            ended_by_tester: requests.iter().map(|figures| figures.requests.ended_by_tester()).sum(),
            median_first: fastest(|figures| figures.time_to_first_char_ns.p50),
            median_gap: fastest(|figures| figures.gap_ns.p50.filter(|gap| *gap >= TOGETHER.as_nanos() as f64)),
        }
    }

    /// Returns the limits that figures of a tester show.
    pub(crate) fn limits(&self, tester: &TesterFigures) -> Vec<TesterLimit> {
        let found = [
            (TesterLimit::Busy, tester.cpu_share.is_some_and(|share| share > MAX_CPU_SHARE)),
            (TesterLimit::Held, tester.held > 0),
            (TesterLimit::EndedRequests, self.ended_by_tester > 0),
            (TesterLimit::Late, !self.distorted(tester).is_empty()),
        ];
        found.into_iter().filter(|(_, is_found)| *is_found).map(|(limit, _)| limit).collect()
    }

    /// Returns the medians that the tester's lag distorts by more than a tenth, with their names.
    fn distorted(&self, tester: &TesterFigures) -> Vec<(&'static str, f64)> {
        let lag = tester.event_lag_ns.p99.unwrap_or(0.0);
        let medians = [("time to first character", self.median_first), ("gap", self.median_gap)];
        let all = medians.into_iter().filter_map(|(name, median)| Some((name, median?)));
        all.filter(|(_, median)| lag > MAX_LAG_SHARE * median).collect()
    }

    /// Describes a limit with its numbers.
    pub(crate) fn describe(&self, limit: TesterLimit, tester: &TesterFigures) -> String {
        match limit {
            TesterLimit::Busy => {
                let share = tester.cpu_share.unwrap_or(0.0) * 100.0;
                format!("it used {share:.0} % of the processor time of its threads: give it more (--threads)")
            }
            TesterLimit::Held => format!(
                "{} requests waited for its limit on requests in flight (--max-in-flight); their wait is counted",
                tester.held
            ),
            TesterLimit::EndedRequests => format!(
                "its own HTTP/2 library closed connections on which too many messages waited to be read, and ended {} requests \
                 with them, reported as {TESTER_CODE} (--connections, --threads)",
                self.ended_by_tester
            ),
            TesterLimit::Late => {
                let lag = time(tester.event_lag_ns.p99.unwrap_or(0.0));
                let medians = self.distorted(tester);
                let medians: Vec<_> =
                    medians.iter().map(|(name, median)| format!("{name} ({})", time(*median))).collect();
                format!(
                    "it saw one event in a hundred more than {lag} late, which is over a tenth of the median {}: too little \
                     processor time was left for it on this machine",
                    medians.join(" and of the median ")
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::histogram::Percentiles;

    #[test]
    fn a_lag_is_one_limit_whichever_medians_it_distorts() {
        let lag = |ns| Percentiles { p99: Some(ns), ..Percentiles::default() };
        let tester = TesterFigures { event_lag_ns: lag(2e6), ..TesterFigures::default() };
        let evidence = |first, gap| {
            let median = |ns| Percentiles { p50: Some(ns), ..Percentiles::default() };
            let figures = RequestFigures {
                time_to_first_char_ns: median(first),
                gap_ns: median(gap),
                ..RequestFigures::default()
            };
            LimitEvidence::of(&[&figures])
        };
        let both = evidence(15e6, 3e6);
        assert_eq!(both.limits(&tester), [TesterLimit::Late]);
        let text = both.describe(TesterLimit::Late, &tester);
        assert!(text.contains("median time to first character (15.0 ms) and of the median gap (3.00 ms)"), "{text}");
        assert_eq!(evidence(100e6, 30e6).limits(&tester), []);
        // Messages that came together have gaps that any lag exceeds.
        assert_eq!(evidence(100e6, 3e3).limits(&tester), []);
    }
}
