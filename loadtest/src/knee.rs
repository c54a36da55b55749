//! Finds the knee: the highest request rate that the server sustains.

use serde::{Deserialize, Serialize};
use weir_measure::format;

/// Smallest share of requests that must succeed.
const MIN_SUCCEEDED_SHARE: f64 = 0.99;
/// Largest share of the window's requests that may still run when the window closes.
const MAX_RUNNING_SHARE: f64 = 0.1;
/// More may run if that many are expected in flight: this factor times the mean number in flight at the lowest rate's median
/// total …
const IN_FLIGHT_FACTOR: f64 = 1.5;
/// … plus this factor times the square root of that mean, for random variation …
const DEVIATION_FACTOR: f64 = 2.0;
/// … but never a larger share than this: a window that short measures too little.
const RUNNING_SHARE_CAP: f64 = 0.2;
/// Largest ratio of the p90 time to first character to that at the lowest rate.
const MAX_SLOWDOWN: f64 = 3.0;
/// Smallest share of requests that must meet the objectives, if there are any.
const MIN_GOOD_SHARE: f64 = 0.9;
/// How often the search halves the first rate if it is not sustained.
const MAX_HALVINGS: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateResult {
    /// Requests per second.
    pub rate: f64,
    /// Measured requests: those that began in the window.
    pub measured: u64,
    /// Measured requests that ended within the window.
    pub ended: u64,
    /// Measured requests that succeeded.
    pub succeeded: u64,
    /// Measured requests that succeeded and met the objectives.
    pub good: u64,
    /// p90 of the time to first character in nanoseconds; the maximum if there are too few requests for a p90.
    pub first_p90: Option<f64>,
    /// Median total time, in nanoseconds.
    pub total_p50: Option<f64>,
    /// True if the load tester may have delayed requests.
    pub tester_limited: bool,
}

/// Result of a rate sweep.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// Highest sustained rate, in requests per second; absent if no rate was sustained.
    pub rate: Option<f64>,
    /// Lowest rate that was not sustained; absent if all were, so that the knee is above them.
    pub broken_at: Option<f64>,
    pub broken_by: Option<String>,
    pub rule: String,
}

/// Returns why the server does not sustain a rate, or `None` if it does.
pub fn unsustained_reason(tried: &RateResult, lowest: &RateResult, objectives: bool) -> Option<String> {
    let RateResult { measured, ended, succeeded, good, .. } = *tried;
    let share = |part: u64| part as f64 / measured as f64;
    if measured == 0 {
        return Some("no request was measured".into());
    }
    if share(succeeded) < MIN_SUCCEEDED_SHARE {
        return Some(format!("{succeeded} of {measured} requests succeeded"));
    }
    if measured.saturating_sub(ended) as f64 > max_running(tried, lowest) {
        return Some(format!("{ended} of {measured} requests that began in the window had ended when it closed"));
    }
    if objectives {
        return (share(good) < MIN_GOOD_SHARE).then(|| format!("{good} of {measured} requests met the objectives"));
    }
    let (first, first_at_lowest) = tried.first_p90.zip(lowest.first_p90)?;
    (first > MAX_SLOWDOWN * first_at_lowest).then(|| {
        format!(
            "time to first character, p90: {}, at the lowest rate {}",
            format::time(first),
            format::time(first_at_lowest)
        )
    })
}

/// Returns how many of a window's requests may still run when it closes. The lowest rate does not excuse itself: a server that
/// falls behind at that rate has as many in flight as its own total time implies.
fn max_running(tried: &RateResult, lowest: &RateResult) -> f64 {
    let measured = tried.measured as f64;
    let in_flight = match lowest.total_p50 {
        Some(total) if lowest.rate < tried.rate => {
            let mean = tried.rate * total / 1e9;
            IN_FLIGHT_FACTOR * mean + DEVIATION_FACTOR * mean.sqrt()
        }
        _ => 0.0,
    };
    (MAX_RUNNING_SHARE * measured).max(in_flight.min(RUNNING_SHARE_CAP * measured))
}

/// Computes the knee from all measured rates.
pub fn knee(tried: &[RateResult], objectives: bool) -> Knee {
    let mut sorted = tried.to_vec();
    sorted.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let mut knee = Knee { rule: rule(objectives), ..Knee::default() };
    let Some(lowest) = sorted.first().copied() else { return knee };
    for point in &sorted {
        if let Some(reason) = unsustained_reason(point, &lowest, objectives) {
            let suffix = if point.tester_limited { "; the tester may have been the limit at that rate" } else { "" };
            knee.broken_at = Some(point.rate);
            knee.broken_by = Some(reason + suffix);
            break;
        }
        // a sustained rate above an unsustained one is luck and does not count
        knee.rate = Some(point.rate);
    }
    knee
}

/// Returns the definition of "sustained" in words.
fn rule(objectives: bool) -> String {
    let last = if objectives {
        format!("at least {} % of the requests meet every objective", MIN_GOOD_SHARE * 100.0)
    } else {
        format!("the p90 time to first character is at most {MAX_SLOWDOWN} times that of the lowest rate")
    };
    format!(
        "a rate is sustained if at least {} % of its requests succeed, at most {} % of the requests that began in the window still \
         run when it closes (or {IN_FLIGHT_FACTOR} times the number expected in flight from the median total at the lowest rate plus \
         {DEVIATION_FACTOR} times its square root, if that is more, but at most {} %), and {last}; the knee is the highest rate below \
         the lowest one that is not sustained",
        MIN_SUCCEEDED_SHARE * 100.0,
        MAX_RUNNING_SHARE * 100.0,
        RUNNING_SHARE_CAP * 100.0
    )
}

/// Returns the next rate to measure: twice the highest one until one is not sustained, or half the lowest one until one is, then
/// `refinements` times the geometric mean between the knee and the lowest unsustained rate.
pub fn next_rate(tried: &[RateResult], max_rate: f64, refinements: usize, objectives: bool) -> Option<f64> {
    let Knee { rate, broken_at, .. } = knee(tried, objectives);
    let highest = tried.iter().map(|tried| tried.rate).max_by(f64::total_cmp)?;
    match (rate, broken_at) {
        (_, None) => (highest * 2.0 <= max_rate).then_some(highest * 2.0),
        (None, Some(_)) => {
            let lowest = tried.iter().map(|tried| tried.rate).min_by(f64::total_cmp)?;
            (tried.len() <= MAX_HALVINGS).then_some(lowest / 2.0)
        }
        (Some(held), Some(broken)) => {
            // doublings and halvings, in any order, are whole powers of two apart; refinements are not
            let first = tried.first()?.rate;
            let is_refined = |tried: &&RateResult| {
                let doublings = (tried.rate / first).log2();
                (doublings - doublings.round()).abs() > 1e-6
            };
            (tried.iter().filter(is_refined).count() < refinements).then_some((held * broken).sqrt())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(rate: f64, ms: f64) -> RateResult {
        RateResult {
            first_p90: Some(ms * 1e6),
            total_p50: Some(ms * 1e6),
            ..counted(rate, (rate * 10.0) as u64, (rate * 10.0) as u64)
        }
    }

    /// A rate of which `ended` of `measured` requests ended in the window, and all succeeded.
    fn counted(rate: f64, measured: u64, ended: u64) -> RateResult {
        RateResult {
            rate,
            measured,
            ended,
            succeeded: measured,
            good: measured,
            first_p90: Some(50e6),
            total_p50: Some(50e6),
            tester_limited: false,
        }
    }

    /// Searches from `first` to `max_rate` with the results of `measure`. Returns the rates in order and the knee.
    fn search(first: f64, max_rate: f64, refinements: usize, measure: impl Fn(f64) -> RateResult) -> (Vec<f64>, Knee) {
        let mut all = vec![measure(first)];
        while let Some(rate) = next_rate(&all, max_rate, refinements, false) {
            all.push(measure(rate));
            assert!(all.len() < 50);
        }
        (all.iter().map(|tried| tried.rate).collect(), knee(&all, false))
    }

    /// Returns the result of a server that sustains up to `capacity` requests per second.
    fn limited(capacity: f64) -> impl Fn(f64) -> RateResult {
        move |rate| match rate {
            // Slower than at the lowest rate, but sustained.
            _ if rate > capacity => tried(rate, 400.0),
            _ if rate > 1.0 => tried(rate, 60.0),
            _ => tried(rate, 50.0),
        }
    }

    #[test]
    fn the_search_doubles_and_then_closes_in() {
        let (rates, knee) = search(1.0, 1000.0, 3, limited(11.0));
        assert_eq!(rates[..5], [1.0, 2.0, 4.0, 8.0, 16.0]);
        assert_eq!(rates.len(), 8);
        let held = knee.rate.unwrap();
        let broken = knee.broken_at.unwrap();
        // three halvings of a doubling, in logarithms
        assert!(held <= 11.0 && 11.0 < broken && (broken / held - 2f64.powf(0.125)).abs() < 1e-9, "{held} {broken}");
        assert!(knee.broken_by.unwrap().contains("p90: 400 ms, at the lowest rate 50.0 ms"));
    }

    /// The server answers three requests per second and falls behind at more.
    #[test]
    fn a_first_rate_that_is_too_high_is_halved_until_one_is_sustained() {
        let answered = |rate: f64| counted(rate, (rate * 1000.0) as u64, (rate.min(3.0) * 1000.0) as u64);
        let (rates, knee) = search(16.0, 1000.0, 2, answered);
        assert_eq!((rates.len(), &rates[..4]), (6, &[16.0, 8.0, 4.0, 2.0][..]));
        assert!(knee.rate.unwrap() <= 3.0 * 1.12 && knee.broken_at.unwrap() > 3.0, "{knee:?}");

        let never = |rate: f64| RateResult { succeeded: 0, good: 0, ..counted(rate, 10, 10) };
        let (rates, knee) = search(16.0, 1000.0, 2, never);
        assert_eq!((rates.len(), rates[5], knee.rate), (6, 0.5, None));
    }

    /// Requests are so long that too many of the first rate's still run when its window closes. The rate below shows that this is
    /// to be expected, so that the search goes up again and still converges.
    #[test]
    fn a_first_rate_that_a_lower_one_excuses_does_not_end_the_search() {
        let long = |rate: f64| {
            let count = (rate * 30.0).max(20.0);
            let in_flight = if rate > 9.0 { 0.5 * count } else { rate * 4.0 };
            RateResult { total_p50: Some(4e9), ..counted(rate, count as u64, (count - in_flight) as u64) }
        };
        let (rates, knee) = search(1.0, 1000.0, 2, long);
        assert_eq!((rates.len(), &rates[..7]), (8, &[1.0, 0.5, 2.0, 4.0, 8.0, 16.0, 128f64.sqrt()][..]), "{rates:?}");
        assert!(knee.rate.unwrap() <= 9.0 && knee.broken_at.unwrap() > 9.0, "{knee:?}");
    }

    #[test]
    fn a_knee_above_the_highest_rate_is_not_reported() {
        let (rates, knee) = search(1.0, 8.0, 3, limited(1e9));
        assert_eq!((rates, knee.rate, knee.broken_at), (vec![1.0, 2.0, 4.0, 8.0], Some(8.0), None));
    }

    #[test]
    fn each_condition_makes_a_rate_unsustained() {
        let lowest = tried(1.0, 50.0);
        let why = |changed: RateResult, objectives| unsustained_reason(&changed, &lowest, objectives);
        let point = tried(10.0, 50.0);
        assert_eq!(why(point, false), None);
        assert_eq!(why(RateResult { first_p90: Some(150e6), ..point }, false), None);
        assert!(why(RateResult { first_p90: Some(151e6), ..point }, false).unwrap().contains("p90"));
        assert!(why(RateResult { succeeded: 98, good: 98, ..point }, false).unwrap().contains("98 of 100"));
        assert!(why(RateResult { ended: 89, ..point }, false).unwrap().contains("89 of 100 requests that began"));
        assert_eq!(why(RateResult { ended: 90, ..point }, false), None);
        // four of seventeen still run: few requests are no excuse
        assert!(why(counted(10.0, 17, 13), false).is_some());
        // at ten per second and one second each, ten and more are in flight; a fifth is too much in any case
        let sustained = |ended, total| {
            unsustained_reason(&RateResult { ended, ..point }, &RateResult { total_p50: Some(total), ..lowest }, false)
                .is_none()
        };
        assert!(sustained(85, 0.7e9) && !sustained(80, 0.7e9) && sustained(80, 60e9) && !sustained(79, 60e9));
        // the lowest rate does not excuse itself
        let behind = RateResult { total_p50: Some(60e9), ..counted(1.0, 100, 85) };
        assert!(unsustained_reason(&behind, &behind, false).is_some());
        assert!(why(counted(10.0, 0, 100), false).is_some());
        // objectives decide instead of the lowest rate
        assert_eq!(why(RateResult { first_p90: Some(900e6), ..point }, true), None);
        assert!(why(RateResult { good: 89, ..point }, true).unwrap().contains("89 of 100"));
    }

    #[test]
    fn the_reason_names_the_tester_where_it_may_be_the_limit() {
        let broken = tried(2.0, 400.0);
        let reason = |broken| knee(&[tried(1.0, 50.0), broken], false).broken_by.unwrap();
        assert!(!reason(broken).contains("tester"));
        let limited = RateResult { tester_limited: true, ..broken };
        assert!(reason(limited).ends_with("the tester may have been the limit at that rate"));
    }

    #[test]
    fn a_sustained_rate_above_an_unsustained_one_does_not_count() {
        let lowest = knee(&[tried(1.0, 50.0), tried(4.0, 60.0), tried(2.0, 400.0)], false);
        assert_eq!((lowest.rate, lowest.broken_at), (Some(1.0), Some(2.0)));
        let none = knee(&[RateResult { succeeded: 0, good: 0, ..counted(1.0, 10, 10) }], false);
        assert_eq!((none.rate, none.broken_at), (None, Some(1.0)));
    }
}
