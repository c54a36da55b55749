//! Warnings of all measurements. Those that differ only in their numbers are shown once.

use super::chapters::Chapter;
use crate::measure::tester::TesterFigures;
use maud::{Markup, html};

/// Mark of a load in tables for which the tester may be the limit.
pub(super) const LIMITED: &str = "†";

/// Warnings that differ only in their numbers.
struct WarningGroup {
    /// Text without numbers.
    key: String,
    count: usize,
    /// The warning of the load with the greatest event lag, and that load.
    example: String,
    load: String,
    lag: f64,
}

/// Returns the text with every number and its unit of time replaced.
fn without_numbers(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let word = word.trim_matches(|sign| "(),:;".contains(sign));
        if word.starts_with(|sign: char| sign.is_ascii_digit()) || ["ns", "µs", "ms", "s"].contains(&word) {
            "#"
        } else {
            word
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn add(groups: &mut Vec<WarningGroup>, tester: &TesterFigures, load: &str) {
    for limit in &tester.limits {
        let key = without_numbers(limit);
        let lag = tester.event_lag_ns.p99.unwrap_or(0.0);
        match groups.iter_mut().find(|group| group.key == key) {
            Some(group) => {
                group.count += 1;
                if lag > group.lag {
                    limit.clone_into(&mut group.example);
                    load.clone_into(&mut group.load);
                    group.lag = lag;
                }
            }
            None => groups.push(WarningGroup { key, count: 1, example: limit.clone(), load: load.to_owned(), lag }),
        }
    }
}

/// Draws the warnings about the tester of all chapters.
pub(super) fn tester_warnings(chapters: &[Chapter<'_>]) -> Markup {
    let mut groups = Vec::new();
    let mut measured = 0;
    for chapter in chapters {
        for comparison in &chapter.comparisons {
            if let Some(tester) = &comparison.tester {
                measured += 1;
                add(&mut groups, tester, "the comparison");
            }
        }
        for run in chapter.loads() {
            measured += 1;
            add(&mut groups, &run.point.tester, &format!("{}, {}", run.model, run.point.load.describe()));
        }
    }
    html! {
        @for group in &groups {
            p.warn {
                strong { "The tester may be the limit" } " in " (group.count) " of " (measured) " measurements: " (group.example)
                @if group.count > 1 { " (" (group.load) "; the greatest delay)" } @else { " (" (group.load) ")" }
                ". " (LIMITED) " marks these loads in the tables."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_that_differ_in_numbers_are_one() {
        let tester = |limits: &[&str], lag| TesterFigures {
            limits: limits.iter().map(|&limit| limit.into()).collect(),
            event_lag_ns: crate::measure::histogram::Percentiles { p99: Some(lag), ..Default::default() },
            ..TesterFigures::default()
        };
        let mut groups = Vec::new();
        add(&mut groups, &tester(&["more than 1.57 ms late (800 µs)"], 1.0), "a");
        add(&mut groups, &tester(&["more than 222 µs late (12.0 s)", "another"], 9.0), "b");
        add(&mut groups, &tester(&["more than 3 ms late (5 ms)"], 2.0), "c");
        assert_eq!(groups.len(), 2);
        assert_eq!((groups[0].count, groups[0].load.as_str()), (3, "b"));
        assert_eq!((groups[1].count, groups[1].example.as_str()), (1, "another"));
    }
}
