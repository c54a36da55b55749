//! Service-level objectives of a single request. A request is good if it succeeded and met all of them.

use super::request_timer::ClientTimer;
use crate::units;
use std::{fmt, str::FromStr, time::Duration};

/// Kind of objective: its name, and the figure of a request that it limits.
struct ObjectiveKind {
    name: &'static str,
    figure: fn(&ClientTimer, Duration) -> Option<Duration>,
}

/// Kinds of objectives. `ttfc` and `total` count from the intended send time of the request, `char` is the mean time per character
/// after those that came first, together, and gaps are the times between its messages. `key` is the time from a keystroke to its
/// completions. An objective whose figure a request does not have is met: a request with a single message, for example, has no
/// gaps.
const KINDS: [ObjectiveKind; 9] = [
    ObjectiveKind { name: "ttfc", figure: |timer, _| timer.first() },
    ObjectiveKind { name: "total", figure: |_, total| Some(total) },
    ObjectiveKind { name: "char", figure: |timer, _| timer.per_char() },
    ObjectiveKind { name: "gap_p50", figure: |timer, _| timer.gap_percentile(0.5) },
    ObjectiveKind { name: "gap_p95", figure: |timer, _| timer.gap_percentile(0.95) },
    ObjectiveKind { name: "gap_p99", figure: |timer, _| timer.gap_percentile(0.99) },
    ObjectiveKind { name: "gap_max", figure: |timer, _| timer.gap_percentile(1.0) },
    ObjectiveKind { name: "key_p50", figure: |timer, _| timer.edits.as_ref()?.percentile(0.5) },
    ObjectiveKind { name: "key_p99", figure: |timer, _| timer.edits.as_ref()?.percentile(0.99) },
];

/// Upper limit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Objective {
    /// Index in [`KINDS`].
    kind: usize,
    limit: Duration,
}

/// Objectives, all of which a good request meets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objectives(Vec<Objective>);

impl Objectives {
    /// True if a request that succeeded after `total` meets all objectives.
    pub fn are_met(&self, timer: &ClientTimer, total: Duration) -> bool {
        let figure = |objective: &Objective| (KINDS[objective.kind].figure)(timer, total);
        self.0.iter().all(|objective| figure(objective).is_none_or(|actual| actual <= objective.limit))
    }

    /// True if there are no objectives.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Objectives {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let objective = |part: &str| {
            let (name, limit) = part.split_once('=').ok_or_else(|| format!("expected NAME=TIME, found {part:?}"))?;
            let kind = KINDS.iter().position(|kind| kind.name == name.trim());
            let kind = kind.ok_or_else(|| {
                let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
                format!("expected one of {}, found {:?}", names.join(", "), name.trim())
            })?;
            let limit = units::duration(limit.trim())
                .map_err(|why| format!("{}: {why}, found {:?}", name.trim(), limit.trim()))?;
            Ok::<_, String>(Objective { kind, limit })
        };
        text.split(',').map(objective).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Objectives {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let describe = |&Objective { kind, limit }: &Objective| {
            format!("{} ≤ {}", KINDS[kind].name, units::time(limit.as_nanos() as f64))
        };
        out.write_str(&self.0.iter().map(describe).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::request_timer::{ClientTimer, ReceivedMessage};
    use std::sync::Arc;
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn a_request_is_good_if_it_meets_every_objective() {
        let mut timer = ClientTimer::new(Arc::default(), Instant::now(), None);
        timer.mark_sent();
        for after in [100, 10, 10, 40] {
            sleep(Duration::from_millis(after)).await;
            let _ = timer.record(ReceivedMessage { characters: 1, ..ReceivedMessage::default() });
        }
        let total = Duration::from_millis(160);
        let met = |text: &str| Objectives::from_str(text).unwrap().are_met(&timer, total);
        assert!(met("ttfc=100ms,gap_p99=40ms, total=160ms,char=20ms"));
        assert!(met("gap_p50=10ms"));
        for missed in ["ttfc=99ms", "gap_p99=39ms", "gap_max=39ms", "total=159ms", "char=19ms", "gap_p50=9ms,ttfc=1s"] {
            assert!(!met(missed), "{missed}");
        }
    }

    #[test]
    fn unknown_objectives_are_rejected_with_the_known_ones() {
        let wrong = |text: &str| Objectives::from_str(text).unwrap_err();
        assert!(wrong("tttt=3s").contains("ttfc, total"));
        assert!(wrong("ttfc").contains("expected NAME=TIME"));
        assert!(wrong("ttfc=3").contains("unit"));
        assert_eq!(
            Objectives::from_str("ttfc=200ms,gap_p99=50ms").unwrap().to_string(),
            "ttfc ≤ 200 ms, gap_p99 ≤ 50.0 ms"
        );
    }
}
