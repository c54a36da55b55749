//! Warnings about the tester: one for each cause, with the number of the measurements that it concerns.

use super::{
    data::{MeasurementReport, ReportPart},
    points::LIMITED,
};
use crate::measure::limits::TesterLimit;

/// A cause, and the measurements in which it was found.
#[derive(Debug)]
struct Warning {
    /// The worst figure of the measurements, or the sum of their counted requests.
    limit: TesterLimit,
    /// Number of measurements.
    count: usize,
    /// True if tester and server share a machine in any of them.
    shares_machine: bool,
}

/// Warnings about all measurements of several reports.
#[derive(Debug, Default)]
struct Warnings {
    all: Vec<Warning>,
    /// Number of measurements with figures of the tester.
    measured: usize,
}

/// Returns a sentence for each way in which the tester may have distorted figures.
pub(super) fn tester_warnings<'a>(reports: impl IntoIterator<Item = &'a MeasurementReport>) -> Vec<String> {
    let mut warnings = Warnings::default();
    for report in reports {
        let shares_machine = is_local(&report.conditions.server);
        report.parts.iter().for_each(|part| warnings.add_part(part, shares_machine));
    }
    let Warnings { all, measured } = warnings;
    all.iter().map(|warning| warning.sentence(measured)).collect()
}

/// Returns true if a server's address is a loopback address.
fn is_local(server: &str) -> bool {
    let address = server.split_once("://").map_or(server, |(_, rest)| rest);
    ["localhost", "127.", "[::1]"].iter().any(|start| address.starts_with(start))
}

impl Warnings {
    fn add_part(&mut self, part: &ReportPart, shares_machine: bool) {
        match part {
            ReportPart::Run { point, .. } => self.add(&point.tester_limits(), shares_machine),
            ReportPart::Batches { points, .. } | ReportPart::Rates { points, .. } => {
                points.iter().for_each(|point| self.add(&point.tester_limits(), shares_machine));
            }
            ReportPart::Compare { comparison } if comparison.tester.is_some() => {
                self.add(&comparison.tester_limits(), shares_machine);
            }
            ReportPart::Compare { .. } => {}
        }
    }

    /// Adds the limits of a measurement.
    fn add(&mut self, limits: &[TesterLimit], shares_machine: bool) {
        self.measured += 1;
        for &limit in limits {
            match self.all.iter_mut().find(|warning| warning.limit.is_like(limit)) {
                Some(warning) => {
                    warning.limit = warning.limit.combine(limit);
                    warning.count += 1;
                    warning.shares_machine |= shares_machine;
                }
                None => self.all.push(Warning { limit, count: 1, shares_machine }),
            }
        }
    }
}

impl Warning {
    /// Returns what happened, how often among `measured` measurements, and what to do.
    fn sentence(&self, measured: usize) -> String {
        let Self { limit, count, shares_machine } = *self;
        let place =
            if measured > 1 { format!(" in {count} of {measured} measurements ({LIMITED})") } else { String::new() };
        format!("the tester may be the limit{place}: {}; {}", limit.fact(), limit.advice(shares_machine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once_with_the_number_of_measurements() {
        let mut warnings = Warnings::default();
        warnings.add(&[TesterLimit::Busy(0.85), TesterLimit::Held(3)], true);
        warnings.add(&[], true);
        warnings.add(&[TesterLimit::Busy(0.93)], true);
        let sentences: Vec<_> = warnings.all.iter().map(|warning| warning.sentence(warnings.measured)).collect();
        let busy = "the tester may be the limit in 2 of 3 measurements (†): it used 93 % of the processor time of its threads; give it \
                    more threads (--threads)";
        let held = "the tester may be the limit in 1 of 3 measurements (†): 3 requests waited for its limit on requests in flight \
                    (--max-in-flight); raise --max-in-flight, because the measured times include the wait";
        assert_eq!(sentences, [busy, held]);
        let only = Warning { limit: TesterLimit::Busy(0.9), count: 1, shares_machine: false };
        assert!(only.sentence(1).starts_with("the tester may be the limit: it used 90 %"), "{}", only.sentence(1));
    }

    #[test]
    fn local_addresses_are_recognised() {
        let local = ["127.0.0.1:50051", "http://localhost:1", "https://[::1]:50051"];
        assert!(local.into_iter().all(is_local));
        assert!(!["10.0.0.1:50051", "http://weir.example.org", "[fe80::1]:1"].into_iter().any(is_local));
    }
}
