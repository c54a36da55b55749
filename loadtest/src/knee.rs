//! The knee: the highest rate that the server sustains, and how it is searched.

use serde::{Deserialize, Serialize};

/// The least share of requests that must end well.
const WELL: f64 = 0.99;
/// The share of a window's requests that may still run when it closes …
const BEHIND: f64 = 0.1;
/// … or as many as a server at ease would have under way by the median total at the lowest rate: so many times their number, …
const UNDER_WAY: f64 = 1.5;
/// … and so many times its root, which is chance; …
const CHANCE: f64 = 2.0;
/// … but never a larger share than this: of a window so short nothing is known.
const MOST_BEHIND: f64 = 0.2;
/// How many times that of the lowest rate the 90th percentile of the time to the first character may be.
const SLOWER: f64 = 3.0;
/// The least share of requests that must be good, where there are objectives.
const GOOD: f64 = 0.9;

/// How often the first rate is halved, if none holds.
const HALVINGS: usize = 5;

/// A rate, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateResult {
    /// Requests a second.
    pub rate: f64,
    /// Of the requests that began in the window, those that ended in it.
    pub ended: u64,
    /// Of the requests that were measured, how many there were, ended well, and were good.
    pub measured: [u64; 3],
    /// The 90th percentile of the time to the first character, or the longest of too few for one, in nanoseconds.
    pub first_p90: Option<f64>,
    /// The median time to the end, in nanoseconds.
    pub total_p50: Option<f64>,
    /// Whether the tester may have held requests up.
    pub limited: bool,
}

/// What a sweep of rates found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knee {
    /// The highest rate that was sustained, in requests a second; absent if none was.
    pub rate: Option<f64>,
    /// The lowest rate that was not; absent if all were, so that the knee lies beyond.
    pub broken_at: Option<f64>,
    /// Why it was not.
    pub broken_by: Option<String>,
    /// What sustained means.
    pub rule: String,
}

/// Why a rate is not sustained, if it is not.
pub fn broken(tried: &RateResult, lowest: &RateResult, objectives: bool) -> Option<String> {
    let [measured, well, good] = tried.measured;
    let share = |part: u64, all: u64| part as f64 / (all.max(1)) as f64;
    if measured == 0 {
        return Some("no request was measured".into());
    }
    if share(well, measured) < WELL {
        return Some(format!("{well} of {measured} requests ended well"));
    }
    if measured.saturating_sub(tried.ended) as f64 > behind(tried, lowest) {
        let ended = tried.ended;
        return Some(format!("of {measured} requests that began in the window {ended} had ended when it closed"));
    }
    if objectives {
        let told = format!("{good} of {measured} requests kept the objectives");
        return (share(good, measured) < GOOD).then_some(told);
    }
    let (now, then) = tried.first_p90.zip(lowest.first_p90)?;
    let told = || format!("time to the first character, p90: {}, at the lowest rate {}", time(now), time(then));
    (now > SLOWER * then).then(told)
}

/// How many of a window's requests may still run when it closes. What the lowest rate's own would be says nothing of it: they are
/// as many as it takes where the server falls behind at that rate already.
fn behind(tried: &RateResult, lowest: &RateResult) -> f64 {
    let measured = tried.measured[0] as f64;
    let under_way = match lowest.total_p50 {
        Some(total) if lowest.rate < tried.rate => {
            let mean = tried.rate * total / 1e9;
            UNDER_WAY * mean + CHANCE * mean.sqrt()
        }
        _ => 0.0,
    };
    (BEHIND * measured).max(under_way.min(MOST_BEHIND * measured))
}

fn time(ns: f64) -> String {
    crate::units::time(ns)
}

/// The knee among all rates that were tried.
pub fn knee(tried: &[RateResult], objectives: bool) -> Knee {
    let mut sorted = tried.to_vec();
    sorted.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let mut knee = Knee { rule: rule(objectives), ..Knee::default() };
    let Some(lowest) = sorted.first().copied() else { return knee };
    for point in &sorted {
        if let Some(why) = broken(point, &lowest, objectives) {
            let whose = if point.limited { "; the tester may have been the limit at that rate" } else { "" };
            (knee.broken_at, knee.broken_by) = (Some(point.rate), Some(why + whose));
            break;
        }
        // a rate above one that broke does not count, whatever luck it had
        knee.rate = Some(point.rate);
    }
    knee
}

/// In words.
fn rule(objectives: bool) -> String {
    let last = if objectives {
        format!("at least {} % of the requests keep every objective", GOOD * 100.0)
    } else {
        format!(
            "the 90th percentile of the time to the first character is at most {SLOWER} times that of the lowest rate"
        )
    };
    format!(
        "a rate is sustained if at least {} % of its requests end well, at most {} % of those that began in the window still run when \
         it closes (or {UNDER_WAY} times as many as are under way by the median total at the lowest rate, and {CHANCE} times the \
         root of that, if that is more, but at most {} %), and {last}; the knee is the highest rate below the lowest one that is not",
        WELL * 100.0,
        BEHIND * 100.0,
        MOST_BEHIND * 100.0
    )
}

/// The next rate to try after these: twice the highest one until one breaks, or half the lowest one until one holds, then the
/// geometric mean between the knee and what broke, `refine` times.
pub fn next(tried: &[RateResult], (most, refine): (f64, usize), objectives: bool) -> Option<f64> {
    let Knee { rate, broken_at, .. } = knee(tried, objectives);
    let highest = tried.iter().map(|tried| tried.rate).max_by(f64::total_cmp)?;
    match (rate, broken_at) {
        (_, None) => (highest * 2.0 <= most).then_some(highest * 2.0),
        (None, Some(_)) => {
            let lowest = tried.iter().map(|tried| tried.rate).min_by(f64::total_cmp)?;
            (tried.len() <= HALVINGS).then_some(lowest / 2.0)
        }
        (Some(held), Some(broken)) => {
            // doublings and halvings, in whatever order they came, are whole powers of two apart; refinements are not
            let first = tried.first()?.rate;
            let is_refined = |tried: &&RateResult| {
                let doublings = (tried.rate / first).log2();
                (doublings - doublings.round()).abs() > 1e-6
            };
            (tried.iter().filter(is_refined).count() < refine).then_some((held * broken).sqrt())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(rate: f64, ms: f64) -> RateResult {
        let started = (rate * 10.0) as u64;
        RateResult {
            rate,
            ended: started,
            measured: [started; 3],
            first_p90: Some(ms * 1e6),
            total_p50: Some(ms * 1e6),
            limited: false,
        }
    }

    /// A server that sustains up to `capacity`.
    fn search(capacity: f64, most: f64, refine: usize) -> (Vec<f64>, Knee) {
        let mut all = vec![tried(1.0, 50.0)];
        while let Some(rate) = next(&all, (most, refine), false) {
            all.push(tried(rate, if rate <= capacity { 60.0 } else { 400.0 }));
            assert!(all.len() < 50);
        }
        (all.iter().map(|tried| tried.rate).collect(), knee(&all, false))
    }

    #[test]
    fn the_search_doubles_and_then_closes_in() {
        let (rates, found) = search(11.0, 1000.0, 3);
        assert_eq!(rates[..5], [1.0, 2.0, 4.0, 8.0, 16.0]);
        assert_eq!(rates.len(), 8);
        let (held, broken) = (found.rate.unwrap(), found.broken_at.unwrap());
        // three halvings of a doubling, in logarithms
        assert!(held <= 11.0 && 11.0 < broken && (broken / held - 2f64.powf(0.125)).abs() < 1e-9, "{held} {broken}");
        assert!(found.broken_by.unwrap().contains("p90: 400 ms, at the lowest rate 50.0 ms"));
    }

    /// A server that answers so many requests a second and falls behind at more.
    #[test]
    fn a_first_rate_that_is_too_high_is_halved_until_one_holds() {
        let answered = |rate: f64| RateResult {
            ended: (rate.min(3.0) * 1000.0) as u64,
            measured: [(rate * 1000.0) as u64; 3],
            ..tried(rate, 50.0)
        };
        let mut all = vec![answered(16.0)];
        while let Some(rate) = next(&all, (1000.0, 2), false) {
            all.push(answered(rate));
            assert!(all.len() < 50);
        }
        let rates: Vec<_> = all.iter().map(|tried| tried.rate).collect();
        assert_eq!((rates.len(), &rates[..4]), (6, &[16.0, 8.0, 4.0, 2.0][..]));
        let found = knee(&all, false);
        assert!(found.rate.unwrap() <= 3.0 * 1.12 && found.broken_at.unwrap() > 3.0, "{found:?}");

        let never = |rate: f64| RateResult { measured: [10, 0, 0], ..tried(rate, 50.0) };
        let mut all = vec![never(16.0)];
        while let Some(rate) = next(&all, (1000.0, 2), false) {
            all.push(never(rate));
        }
        assert_eq!((all.len(), all[5].rate, knee(&all, false).rate), (6, 0.5, None));
    }

    /// Requests so long that of the first rate too many still run when its window closes: by the rate below they are what is to be
    /// expected, and the search goes up again, and still closes in.
    #[test]
    fn a_first_rate_that_a_lower_one_excuses_is_no_end_of_the_search() {
        let long = |rate: f64| {
            let (count, slow) = ((rate * 30.0).max(20.0), rate > 9.0);
            let under_way = if slow { 0.5 * count } else { rate * 4.0 };
            let ended = (count - under_way) as u64;
            RateResult { ended, measured: [count as u64; 3], total_p50: Some(4e9), ..tried(rate, 50.0) }
        };
        let mut all = vec![long(1.0)];
        while let Some(rate) = next(&all, (1000.0, 2), false) {
            all.push(long(rate));
            assert!(all.len() < 50);
        }
        let rates: Vec<_> = all.iter().map(|tried| tried.rate).collect();
        assert_eq!((rates.len(), &rates[..7]), (8, &[1.0, 0.5, 2.0, 4.0, 8.0, 16.0, 128f64.sqrt()][..]), "{rates:?}");
        let found = knee(&all, false);
        assert!(found.rate.unwrap() <= 9.0 && found.broken_at.unwrap() > 9.0, "{found:?}");
    }

    #[test]
    fn a_knee_beyond_the_highest_rate_is_not_made_up() {
        let (rates, found) = search(1e9, 8.0, 3);
        assert_eq!((rates, found.rate, found.broken_at), (vec![1.0, 2.0, 4.0, 8.0], Some(8.0), None));
    }

    #[test]
    fn each_condition_breaks_a_rate() {
        let lowest = tried(1.0, 50.0);
        let why = |changed: RateResult, objectives| broken(&changed, &lowest, objectives);
        let point = tried(10.0, 50.0);
        assert_eq!(why(point, false), None);
        assert_eq!(why(RateResult { first_p90: Some(150e6), ..point }, false), None);
        assert!(why(RateResult { first_p90: Some(151e6), ..point }, false).unwrap().contains("p90"));
        assert!(why(RateResult { measured: [100, 98, 98], ..point }, false).unwrap().contains("98 of 100"));
        assert!(why(RateResult { ended: 89, ..point }, false).unwrap().contains("89 had ended"));
        assert_eq!(why(RateResult { ended: 90, ..point }, false), None);
        // few requests are no excuse: four of seventeen
        assert!(why(RateResult { measured: [17; 3], ended: 13, ..point }, false).is_some());
        // ten a second that take a second each are ten under way, and more by chance; but a fifth is too much whatever they take
        let slow = |ended, total| {
            broken(&RateResult { ended, ..point }, &RateResult { total_p50: Some(total), ..lowest }, false).is_none()
        };
        assert!(slow(85, 0.7e9) && !slow(80, 0.7e9) && slow(80, 60e9) && !slow(79, 60e9));
        // the lowest rate does not excuse itself
        let behind = RateResult { measured: [100; 3], ended: 85, total_p50: Some(60e9), ..lowest };
        assert!(broken(&behind, &behind, false).is_some());
        assert!(why(RateResult { measured: [0; 3], ..point }, false).is_some());
        // with objectives they decide, not the lowest rate
        assert_eq!(why(RateResult { first_p90: Some(900e6), ..point }, true), None);
        assert!(why(RateResult { measured: [100, 100, 89], ..point }, true).unwrap().contains("89 of 100"));
    }

    #[test]
    fn a_rate_that_the_tester_may_have_broken_says_so() {
        let broken = tried(2.0, 400.0);
        let told = |broken| knee(&[tried(1.0, 50.0), broken], false).broken_by.unwrap();
        assert!(!told(broken).contains("tester"));
        assert!(
            told(RateResult { limited: true, ..broken }).ends_with("the tester may have been the limit at that rate")
        );
    }

    #[test]
    fn luck_above_a_broken_rate_does_not_count() {
        let found = knee(&[tried(1.0, 50.0), tried(4.0, 60.0), tried(2.0, 400.0)], false);
        assert_eq!((found.rate, found.broken_at), (Some(1.0), Some(2.0)));
        let none = knee(&[RateResult { measured: [10, 0, 0], ..tried(1.0, 50.0) }], false);
        assert_eq!((none.rate, none.broken_at), (None, Some(1.0)));
    }
}
