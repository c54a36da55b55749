//! Warnings about the tester: one for each cause, with the measurements that it concerns.

use super::{
    data::{MeasurementReport, ReportPart},
    points::{LIMITED, short_load},
};
use crate::{
    client::connection::TESTER_CODE,
    measure::{
        limits::TesterLimit,
        tester::{MAX_CPU_SHARE, TesterFigures},
    },
    units::time,
};

/// Maximum loads that a warning lists. If there are more, it states their number, and the tables mark them.
const MAX_LISTED: usize = 12;

/// Cause of a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cause {
    limit: TesterLimit,
    /// True if tester and server share a machine.
    shares_machine: bool,
}

/// A cause, and the measurements in which it was found.
#[derive(Debug)]
struct Warning {
    cause: Cause,
    /// The measurements that are loads, with their marks.
    loads: Vec<String>,
    /// Number of comparisons.
    comparisons: usize,
    /// Greatest 99th percentile of the event lag in these steps, in nanoseconds.
    lag: f64,
}

/// Warnings about all measurements of several reports.
#[derive(Debug, Default)]
struct Warnings {
    all: Vec<Warning>,
    /// Number of measurements with figures of the tester.
    measured: usize,
}

/// Returns a sentence for each way in which the tester may have distorted figures.
pub(super) fn tester_warnings<'a>(reports: impl IntoIterator<Item = &'a MeasurementReport> + Clone) -> Vec<String> {
    let mut models: Vec<&str> = Vec::new();
    for part in reports.clone().into_iter().flat_map(|report| &report.parts) {
        if let ReportPart::Run { model, .. } | ReportPart::Batches { model, .. } | ReportPart::Rates { model, .. } =
            part
            && !models.contains(&model.as_str())
        {
            models.push(model);
        }
    }
    let mut warnings = Warnings::default();
    for report in reports {
        report
            .parts
            .iter()
            .for_each(|part| warnings.add_part(part, is_local(&report.conditions.server), models.len() > 1));
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
    /// Adds the measurements of a part. `several` is true if measurements need their models' names, because there are several
    /// models.
    fn add_part(&mut self, part: &ReportPart, shares_machine: bool, several: bool) {
        let (model, points) = match part {
            ReportPart::Run { model, point } => (model, std::slice::from_ref(point)),
            ReportPart::Batches { model, points } | ReportPart::Rates { model, points, .. } => {
                (model, points.as_slice())
            }
            ReportPart::Compare { comparison } => {
                if let Some(tester) = &comparison.tester {
                    let figures: Vec<_> = comparison.models.iter().map(|model| &model.figures).collect();
                    self.add(None, tester, &TesterLimit::of(tester, &figures), shares_machine);
                }
                return;
            }
        };
        for point in points {
            let load = format!("{} {LIMITED}", short_load(point));
            let step = if several { format!("{model}, {load}") } else { load };
            self.add(Some(&step), &point.tester, &point.tester_limits(), shares_machine);
        }
    }

    /// Adds the limits of a measurement: of `load`, or of a comparison if `load` is `None`.
    fn add(&mut self, load: Option<&str>, tester: &TesterFigures, limits: &[TesterLimit], shares_machine: bool) {
        self.measured += 1;
        let lag = tester.event_lag_ns.p99.unwrap_or(0.0);
        for &limit in limits {
            let cause = Cause { limit, shares_machine: shares_machine && limit == TesterLimit::Late };
            let found = self.all.iter().position(|warning| warning.cause == cause);
            let index = found.unwrap_or_else(|| {
                self.all.push(Warning { cause, loads: Vec::new(), comparisons: 0, lag });
                self.all.len() - 1
            });
            if let Some(warning) = self.all.get_mut(index) {
                warning.comparisons += usize::from(load.is_none());
                warning.loads.extend(load.map(str::to_owned));
                warning.lag = warning.lag.max(lag);
            }
        }
    }
}

impl Warning {
    /// Lists the measurements, or states the number of loads if there are many.
    fn steps(&self) -> String {
        let comparison = match self.comparisons {
            0 => None,
            1 => Some("the comparison".to_owned()),
            count => Some(format!("{count} comparisons")),
        };
        let loads = match self.loads.len() {
            0..=MAX_LISTED => self.loads.clone(),
            count => vec![format!("{count} loads with {LIMITED} in the tables")],
        };
        comparison.into_iter().chain(loads).collect::<Vec<_>>().join(", ")
    }

    /// Returns what happened, where, and what to do, among `measured` measurements.
    fn sentence(&self, measured: usize) -> String {
        let place = match self.loads.len() + self.comparisons {
            1 if measured == 1 => String::new(),
            count if count == measured => format!(" in all {measured} measurements"),
            count => format!(" in {count} of {measured} measurements ({})", self.steps()),
        };
        let Cause { limit, shares_machine } = self.cause;
        match limit {
            TesterLimit::Busy => format!(
                "the tester may be the limit, because it used more than {:.0} % of the processor time of its threads{place}: give it \
                 more threads (--threads)",
                MAX_CPU_SHARE * 100.0
            ),
            TesterLimit::Held => format!(
                "requests waited for the tester's own limit on requests in flight{place}, and their wait is counted: raise \
                 --max-in-flight"
            ),
            TesterLimit::EndedRequests => format!(
                "the tester's own HTTP/2 library ended requests{place}, reported as {TESTER_CODE}, because too many messages waited to \
                 be read: raise --connections and --threads"
            ),
            TesterLimit::Late => {
                let lag = time(self.lag);
                let advice = if shares_machine {
                    "server and tester share this machine: run the tester on another one, or leave it a core (weir serve --threads)"
                } else {
                    "stop other programs on the tester's machine, or run the tester on another one"
                };
                format!(
                    "the tester saw one event in a hundred more than {lag} late{place}, which lengthens the high percentiles of short \
                     times; {advice}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::histogram::Percentiles;

    fn tester(lag: f64) -> TesterFigures {
        TesterFigures {
            event_lag_ns: Percentiles { p99: Some(lag), ..Percentiles::default() },
            ..TesterFigures::default()
        }
    }

    #[test]
    fn a_cause_is_said_once_with_its_steps() {
        let mut warnings = Warnings::default();
        warnings.add(Some("a"), &tester(1e6), &[TesterLimit::Busy, TesterLimit::Late], true);
        warnings.add(Some("b"), &tester(3e6), &[TesterLimit::Late], true);
        warnings.add(None, &tester(2e6), &[TesterLimit::Late], true);
        warnings.add(Some("c"), &tester(2e6), &[], true);
        let sentences: Vec<_> = warnings.all.iter().map(|warning| warning.sentence(warnings.measured)).collect();
        let [busy, late] = &sentences[..] else { panic!("{sentences:?}") };
        assert!(
            busy.contains("more than 80 % of the processor time of its threads in 1 of 4 measurements (a): give"),
            "{busy}"
        );
        assert!(late.contains("more than 3.00 ms late in 3 of 4 measurements (the comparison, a, b), which"), "{late}");
        assert!(late.ends_with("leave it a core (weir serve --threads)"), "{late}");
        (0..20).for_each(|_| warnings.add(Some("d"), &tester(1e6), &[TesterLimit::Late], true));
        let many = warnings.all[1].sentence(warnings.measured);
        assert!(
            many.contains("in 23 of 24 measurements (the comparison, 22 loads with † in the tables), which"),
            "{many}"
        );
    }

    #[test]
    fn the_place_is_left_out_where_it_says_nothing() {
        let mut warnings = Warnings::default();
        warnings.add(Some("a"), &tester(1e6), &[TesterLimit::Late], false);
        let sentence = |warnings: &Warnings| warnings.all[0].sentence(warnings.measured);
        assert!(sentence(&warnings).contains("late, which"), "{}", sentence(&warnings));
        assert!(!sentence(&warnings).contains("share this machine"));
        warnings.add(Some("b"), &tester(1e6), &[TesterLimit::Late], false);
        assert!(sentence(&warnings).contains("late in all 2 measurements, which"), "{}", sentence(&warnings));
    }

    #[test]
    fn local_addresses_are_recognised() {
        let local = ["127.0.0.1:50051", "http://localhost:1", "https://[::1]:50051"];
        assert!(local.into_iter().all(is_local));
        assert!(!["10.0.0.1:50051", "http://weir.example.org", "[fe80::1]:1"].into_iter().any(is_local));
    }
}
