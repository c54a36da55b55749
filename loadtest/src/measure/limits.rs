//! Ways in which the tester may have distorted a measurement, as its figures show them.

use super::{
    histogram::Percentiles,
    request_timer::TOGETHER,
    stats::RequestFigures,
    tester::{MAX_CPU_SHARE, MAX_LAG_SHARE, TesterFigures},
};
use crate::{client::connection::TESTER_CODE, units::time};
use std::mem::discriminant;

/// Percentiles of a figure that are compared with those of the tester's lag, with their names.
const COMPARED: [(&str, PercentileOf); 3] =
    [("p50", |values| values.p50), ("p90", |values| values.p90), ("p99", |values| values.p99)];

/// Names of the measured times that are compared.
const TIMES: [&str; 2] = ["time to first character", "gap"];

type PercentileOf = fn(&Percentiles) -> Option<f64>;

/// Way in which the tester may have distorted a measurement, with the figure that shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TesterLimit {
    /// It used this share of the processor time of its threads.
    Busy(f64),
    /// This many requests waited for its limit on requests in flight.
    Held(u64),
    /// Its HTTP/2 library ended this many requests.
    EndedRequests(u64),
    /// It saw events late, compared with the times that it measured.
    Late(Lateness),
}

/// Lag of the tester that is large compared with a measured time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lateness {
    /// Percentile of the lag, in nanoseconds.
    lag: f64,
    /// The same percentile of the measured times, in nanoseconds.
    measured: f64,
    /// Which time and which percentile.
    figure: Figure,
    /// All percentiles that the lag distorts so.
    distorted: [[bool; COMPARED.len()]; TIMES.len()],
}

/// A percentile of a measured time: indices of [`TIMES`] and [`COMPARED`].
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figure {
    time: usize,
    percentile: usize,
}

/// Figures of requests that show whether the tester was the limit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LimitEvidence {
    /// Requests that the tester's own library ended.
    pub(crate) ended_by_tester: u64,
    /// Times to first character, in nanoseconds: the percentiles in [`COMPARED`].
    pub(crate) first: [Option<f64>; COMPARED.len()],
    /// Gaps, in nanoseconds. Gaps of messages that came together are absent, because the server did not cause them.
    pub(crate) gap: [Option<f64>; COMPARED.len()],
}

impl TesterLimit {
    /// Returns the limits that a report states for a measurement. `requests` has the figures of each model.
    pub fn of(tester: &TesterFigures, requests: &[&RequestFigures]) -> Vec<Self> {
        // a report states none if the server ended the measurement
        if tester.limits.is_empty() { Vec::new() } else { LimitEvidence::of(requests).limits(tester) }
    }

    /// Describes what the tester did, with the number that shows it.
    pub fn fact(self) -> String {
        let requests = |count| format!("{count} {}", if count == 1 { "request" } else { "requests" });
        match self {
            Self::Busy(share) => format!("it used {:.0} % of the processor time of its threads", share * 100.0),
            Self::Held(count) => {
                format!("{} waited for its limit on requests in flight (--max-in-flight)", requests(count))
            }
            Self::EndedRequests(count) => format!(
                "its HTTP/2 library ended {} with code {TESTER_CODE}, because too many messages waited to be read",
                requests(count)
            ),
            Self::Late(late) => late.fact(),
        }
    }

    /// Returns what the user can do. `shares_machine` is true if tester and server share a machine.
    pub fn advice(self, shares_machine: bool) -> &'static str {
        match self {
            Self::Busy(_) => "give it more threads (--threads)",
            Self::Held(_) => "raise --max-in-flight, because the measured times include the wait",
            Self::EndedRequests(_) => "raise --connections and --threads",
            Self::Late(_) if shares_machine => {
                "run it on another machine, or leave it a core of this one (weir serve --threads)"
            }
            Self::Late(_) => "stop other programs on its machine, or run it on another one",
        }
    }

    /// True for two limits of one kind, whatever their numbers are.
    pub(crate) fn is_like(self, other: Self) -> bool {
        discriminant(&self) == discriminant(&other)
    }

    /// Combines limits of one kind in two measurements: the worse number, or the sum of counted requests.
    pub(crate) fn combine(self, other: Self) -> Self {
        match (self, other) {
            (Self::Busy(share), Self::Busy(more)) => Self::Busy(share.max(more)),
            (Self::Held(count), Self::Held(more)) => Self::Held(count + more),
            (Self::EndedRequests(count), Self::EndedRequests(more)) => Self::EndedRequests(count + more),
            (Self::Late(late), Self::Late(later)) => Self::Late(late.combine(later)),
            (first, _) => first,
        }
    }
}

impl Figure {
    fn percentile_name(self) -> &'static str {
        COMPARED[self.percentile].0
    }

    fn name(self) -> String {
        format!("{} {}", self.percentile_name(), TIMES[self.time])
    }
}

impl Lateness {
    /// Describes the lag with the time that it distorts most, and names the others that it distorts.
    fn fact(self) -> String {
        let Self { lag, measured, figure, .. } = self;
        let others: Vec<_> = self.distorted_figures().filter(|other| *other != figure).map(Figure::name).collect();
        let others = match others.is_empty() {
            true => String::new(),
            false => format!("; {} may be wrong as well", others.join(", ")),
        };
        format!(
            "it saw events {} late at the {}, over a tenth of the {} ({}){others}",
            time(lag),
            figure.percentile_name(),
            figure.name(),
            time(measured)
        )
    }

    fn distorted_figures(self) -> impl Iterator<Item = Figure> {
        let all =
            (0..TIMES.len()).flat_map(|time| (0..COMPARED.len()).map(move |percentile| Figure { time, percentile }));
        all.filter(move |figure| self.distorted[figure.time][figure.percentile])
    }

    /// Returns the larger lag, with the figures that either distorts.
    fn combine(self, other: Self) -> Self {
        let larger = if other.lag > self.lag { other } else { self };
        let mut distorted = self.distorted;
        other.distorted_figures().for_each(|figure| distorted[figure.time][figure.percentile] = true);
        Self { distorted, ..larger }
    }
}

impl LimitEvidence {
    /// Collects the evidence from the figures of each model. Times are those of the fastest one, which the tester distorts most.
    pub(crate) fn of(requests: &[&RequestFigures]) -> Self {
        let fastest = |figure: fn(&RequestFigures) -> Percentiles, shortest: f64| {
            COMPARED.map(|(_, percentile)| {
                let values = requests.iter().filter_map(|figures| percentile(&figure(figures)));
                values.filter(|value| *value >= shortest).min_by(f64::total_cmp)
            })
        };
        Self {
            ended_by_tester: requests.iter().map(|figures| figures.requests.ended_by_tester()).sum(),
            first: fastest(|figures| figures.time_to_first_char_ns, 0.0),
            gap: fastest(|figures| figures.gap_ns, TOGETHER.as_nanos() as f64),
        }
    }

    /// Returns the evidence without that of gaps, which do not delay requests.
    pub(crate) fn without_gaps(self) -> Self {
        Self { gap: [None; COMPARED.len()], ..self }
    }

    /// Returns the limits that figures of a tester show.
    pub(crate) fn limits(&self, tester: &TesterFigures) -> Vec<TesterLimit> {
        let busy = tester.cpu_share.filter(|share| *share > MAX_CPU_SHARE).map(TesterLimit::Busy);
        let held = (tester.held > 0).then_some(TesterLimit::Held(tester.held));
        let ended = (self.ended_by_tester > 0).then_some(TesterLimit::EndedRequests(self.ended_by_tester));
        let late = self.lateness(&tester.event_lag_ns).map(TesterLimit::Late);
        [busy, held, ended, late].into_iter().flatten().collect()
    }

    /// Returns the measured times that the lag distorts by more than a tenth. A lag is added to a time, so a percentile of the lag is
    /// compared with the same percentile of the times.
    fn lateness(&self, lags: &Percentiles) -> Option<Lateness> {
        let mut distorted = [[false; COMPARED.len()]; TIMES.len()];
        let mut worst: Option<Lateness> = None;
        for (time, values) in [self.first, self.gap].into_iter().enumerate() {
            for (percentile, ((_, of), measured)) in COMPARED.into_iter().zip(values).enumerate() {
                let Some((lag, measured)) = of(lags).zip(measured) else { continue };
                if lag <= MAX_LAG_SHARE * measured {
                    continue;
                }
                distorted[time][percentile] = true;
                if worst.is_none_or(|worst| lag / measured > worst.lag / worst.measured) {
                    worst = Some(Lateness { lag, measured, figure: Figure { time, percentile }, distorted });
                }
            }
        }
        worst.map(|worst| Lateness { distorted, ..worst })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lags(p50: f64, p99: f64) -> TesterFigures {
        let event_lag_ns = Percentiles { p50: Some(p50), p99: Some(p99), ..Percentiles::default() };
        TesterFigures { event_lag_ns, ..TesterFigures::default() }
    }

    fn evidence(first: f64, gap: f64, gap_p99: f64) -> LimitEvidence {
        let times = |p50, p99| Percentiles { p50: Some(p50), p99, ..Percentiles::default() };
        let figures = RequestFigures {
            time_to_first_char_ns: times(first, None),
            gap_ns: times(gap, Some(gap_p99)),
            ..RequestFigures::default()
        };
        LimitEvidence::of(&[&figures])
    }

    #[test]
    fn a_lag_is_compared_with_the_same_percentile_of_the_times() {
        // A hundredth of the events was late: that says nothing about medians.
        assert_eq!(evidence(15e6, 1e6, 30e6).limits(&lags(5e4, 2e6)), []);
        let [late] = evidence(15e6, 1e6, 15e6).limits(&lags(5e4, 2e6))[..] else { panic!() };
        assert_eq!(late.fact(), "it saw events 2.00 ms late at the p99, over a tenth of the p99 gap (15.0 ms)");
        let [late] = evidence(2e6, 5e6, 50e6).limits(&lags(3e5, 4e5))[..] else { panic!() };
        assert!(late.fact().ends_with("over a tenth of the p50 time to first character (2.00 ms)"), "{}", late.fact());
        // The worst figure does not hide the others.
        let [late] = evidence(2e6, 1e6, 15e6).limits(&lags(3e5, 4e6))[..] else { panic!() };
        let worst = "it saw events 300 µs late at the p50, over a tenth of the p50 gap (1.00 ms)";
        assert_eq!(late.fact(), format!("{worst}; p50 time to first character, p99 gap may be wrong as well"));
        let [other] = evidence(15e6, 15e6, 30e6).limits(&lags(5e4, 5e6))[..] else { panic!() };
        assert!(other.combine(late).fact().ends_with("; p50 time to first character, p50 gap may be wrong as well"));
        // Messages that came together have gaps that any lag exceeds.
        assert_eq!(evidence(100e6, 3e3, 3e3).limits(&lags(2e6, 2e6)), []);
    }

    #[test]
    fn limits_of_one_kind_are_combined() {
        let late = |lag| {
            let distorted = [[false; 3], [false, false, true]];
            TesterLimit::Late(Lateness { lag, measured: 5e6, figure: Figure { time: 1, percentile: 2 }, distorted })
        };
        assert_eq!(late(1e6).combine(late(3e6)), late(3e6));
        assert_eq!(late(3e6).combine(late(1e6)), late(3e6));
        assert_eq!(TesterLimit::Busy(0.9).combine(TesterLimit::Busy(0.85)), TesterLimit::Busy(0.9));
        assert_eq!(TesterLimit::Held(2).combine(TesterLimit::Held(3)), TesterLimit::Held(5));
        assert!(late(1e6).is_like(late(2e6)) && !late(1e6).is_like(TesterLimit::Held(1)));
        assert!(TesterLimit::Held(1).fact().starts_with("1 request waited"));
    }
}
