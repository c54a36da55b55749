//! Service objectives of a single request: it is good if it ended well and kept all of them.

use super::request_timer::RequestTimer;
use crate::units;
use std::{fmt, str::FromStr, time::Duration};

/// What an objective is about: its name, what it is, and how a request's figure is found.
type Objective = (&'static str, &'static str, fn(&RequestTimer, Duration) -> Option<Duration>);

/// All that can be asked for. A figure that a request does not have, such as a gap where one message came, is kept.
const KINDS: [Objective; 7] = [
    ("ttfc", "time to the first character, from the intended start", |watch, _| watch.first()),
    ("total", "time to the end, from the intended start", |_, total| Some(total)),
    ("char", "mean time of a character after the first", |watch, _| watch.per_char()),
    ("gap_p50", "the median gap between this request's messages", |watch, _| watch.gap(0.5)),
    ("gap_p95", "its 95th percentile", |watch, _| watch.gap(0.95)),
    ("gap_p99", "its 99th percentile", |watch, _| watch.gap(0.99)),
    ("gap_max", "the longest gap", |watch, _| watch.gap(1.0)),
];

/// Objectives, all of which a good request keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objectives(Vec<(usize, Duration)>);

impl Objectives {
    /// Whether a request that ended well after `total` kept all of them.
    pub fn kept(&self, watch: &RequestTimer, total: Duration) -> bool {
        self.0.iter().all(|&(kind, most)| KINDS[kind].2(watch, total).is_none_or(|found| found <= most))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Objectives {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |part: &str| {
            let (name, most) = part.split_once('=').ok_or_else(|| format!("{part:?} has no ="))?;
            let kind = KINDS.iter().position(|kind| kind.0 == name.trim());
            let kind = kind.ok_or_else(|| {
                let names: Vec<_> = KINDS.iter().map(|kind| kind.0).collect();
                format!("{:?} is none of {}", name.trim(), names.join(", "))
            })?;
            let most = units::duration(most.trim()).map_err(|why| format!("{}: {why}", name.trim()))?;
            Ok::<_, String>((kind, most))
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Objectives {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one =
            |&(kind, most): &(usize, Duration)| format!("{} ≤ {}", KINDS[kind].0, units::time(most.as_nanos() as f64));
        let all: Vec<_> = self.0.iter().map(one).collect();
        out.write_str(&all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::request_timer::{ReceivedMessage, RequestTimer};
    use std::sync::Arc;
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn a_request_is_good_if_it_kept_every_objective() {
        let mut watch = RequestTimer::new(Arc::default(), Instant::now(), None);
        watch.sends();
        for after in [100, 10, 10, 40] {
            sleep(Duration::from_millis(after)).await;
            let _ = watch.arrived(ReceivedMessage { characters: 1, ends: 0, marked: 0 });
        }
        let total = Duration::from_millis(160);
        let kept = |text: &str| Objectives::from_str(text).unwrap().kept(&watch, total);
        assert!(kept("ttfc=100ms,gap_p99=40ms, total=160ms,char=20ms"));
        assert!(kept("gap_p50=10ms"));
        for missed in ["ttfc=99ms", "gap_p99=39ms", "gap_max=39ms", "total=159ms", "char=19ms", "gap_p50=9ms,ttfc=1s"] {
            assert!(!kept(missed), "{missed}");
        }
    }

    #[test]
    fn wrong_ones_are_told_with_what_there_is() {
        let wrong = |text: &str| Objectives::from_str(text).unwrap_err();
        assert!(wrong("tttt=3s").contains("ttfc, total"));
        assert!(wrong("ttfc").contains("has no ="));
        assert!(wrong("ttfc=3").contains("unit"));
        assert_eq!(
            Objectives::from_str("ttfc=200ms,gap_p99=50ms").unwrap().to_string(),
            "ttfc ≤ 200 ms, gap_p99 ≤ 50.0 ms"
        );
    }
}
