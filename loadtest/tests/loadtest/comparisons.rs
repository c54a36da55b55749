//! Comparisons of models with known gains.

use super::stub::{Script, Stub};
use super::support::{ms, spec, target};
use crate::*;
use weir_loadtest::client::SymbolUnit;
use weir_loadtest::comparison::{ModelComparison, text_bits};
use weir_loadtest::workload::WorkloadKind;

/// Returns a slow model, and one with a third of its time per character and half of its time to the first.
fn scripts() -> Vec<Script> {
    let slow = Script { first: ms(100), plain: ms(30), boundary: ms(30), ..Script::instant("slow") };
    let fast = Script {
        first: ms(50),
        plain: ms(8),
        boundary: ms(18),
        segment: 5,
        bits_per_char: 2.1,
        gain: Some(2.75),
        ..Script::instant("fast")
    };
    vec![slow, fast]
}

async fn compare(scripts: Vec<Script>, rounds: u64) -> ModelComparison {
    compare_of(scripts, rounds, spec(21)).await
}

/// Compares all models, the first of which is the baseline.
pub(crate) async fn compare_of(scripts: Vec<Script>, rounds: u64, spec: WorkloadSpec) -> ModelComparison {
    let stub = Stub::new(scripts.clone());
    let mut targets = Vec::new();
    for script in &scripts {
        targets.push(target(&stub, &script.name, !script.summarizes).await);
    }
    let mix = WorkloadMix::new(vec![spec], 1).unwrap();
    let (_never, stop) = watch::channel(false);
    let setup = ComparisonSetup { targets, mix, rounds, warm_up: 2, seed: 1, threads: 1 };
    compare_models(setup, stop, false, |_| {}).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_known_gain_is_measured() {
    let comparison = compare(scripts(), 20).await;
    assert_eq!((comparison.baseline.as_str(), comparison.rounds, comparison.complete), ("slow", 20, 20));
    let [slow, fast] = &comparison.models[..] else { panic!("two models") };
    assert_eq!(slow.gains, None);
    // the tester's figures cover all messages of both models, warm-up included
    let tester = &comparison.tester;
    assert_eq!((tester.threads, tester.connections, &tester.limits[..]), (1, 2, &[][..]));
    assert!(tester.messages_per_second > 0.0 && tester.cpu_ns.is_some_and(|ns| ns > 0));
    let gains = fast.gains.clone().unwrap();
    // after the first character: 20 of 30 ms, against 16 of 8 ms and 4 of 18 ms
    for (gain, expected) in [(gains.total, 700.0 / 250.0), (gains.time_to_first_char, 2.0), (gains.char, 3.0)] {
        let gain = gain.unwrap();
        assert!((gain.ratio / expected - 1.0).abs() < 0.02, "{gain:?} {expected}");
        assert!(gain.low.unwrap() <= gain.ratio && gain.ratio <= gain.high.unwrap());
        assert_eq!(gain.pairs, 20);
    }
    assert_eq!(fast.figures.shortening_factor, Some(41.0 / 8.0));
    // the server's estimates for the same rounds are reported separately
    assert_eq!(slow.estimated, None);
    let estimated = fast.estimated.clone().unwrap();
    for gain in [estimated.total, estimated.time_to_first_char, estimated.char] {
        assert!((gain.unwrap().ratio / 2.75 - 1.0).abs() < 0.01, "{gain:?}");
    }
    let [total, char] = fast.estimate_errors()[..] else { panic!("two figures are compared") };
    assert!((total.1 - (2.75 / 2.8 - 1.0)).abs() < 0.03, "{total:?}");
    assert!((char.1 - (2.75 / 3.0 - 1.0)).abs() < 0.03, "{char:?}");
}

/// Answers of equally many tokens and characters are texts of different length.
#[tokio::test(start_paused = true)]
async fn times_of_different_units_are_not_compared_in_total() {
    let mut comparison = compare(scripts(), 5).await;
    comparison.set_units([SymbolUnit::Characters; 2]);
    assert_eq!(comparison.mixed_units(), None);
    let total = comparison.models[1].gains.clone().unwrap().total;
    assert!(total.is_some());
    comparison.set_units([SymbolUnit::Tokens, SymbolUnit::Characters]);
    let gains = comparison.models[1].gains.clone().unwrap();
    assert_eq!(gains.total, None);
    assert!(gains.char.is_some() && gains.time_to_first_char.is_some());
    let units = comparison.mixed_units().unwrap();
    assert!(units.starts_with("an answer of N symbols is N characters from fast, but N tokens from slow: "), "{units}");
}

/// Compares a summarizer that takes 80 ms per document and 6 ms per token with one that is four and two times as fast.
#[tokio::test(start_paused = true)]
async fn a_known_gain_of_summaries_is_measured() {
    let slow = Script { first: ms(80), plain: ms(6), summarizes: true, ..Script::instant("slow") };
    let fast = Script { first: ms(20), plain: ms(3), segment: 4, ..Script { name: "fast".into(), ..slow.clone() } };
    let comparison = compare_of(vec![slow, fast], 10, WorkloadSpec { kind: WorkloadKind::Summarize, ..spec(11) }).await;
    assert_eq!(comparison.complete, 10);
    let fast = &comparison.models[1];
    let gains = fast.gains.clone().unwrap();
    for (gain, expected) in [(gains.encode, 4.0), (gains.decode_token, 2.0), (gains.total, 140.0 / 50.0)] {
        assert!((gain.unwrap().ratio / expected - 1.0).abs() < 0.02, "{gain:?} {expected}");
    }
    assert_eq!(gains.char, None, "summaries of two models have different characters");
    let texts = (fast.figures.prompt_chars, fast.figures.cached_chars, fast.figures.shortening_factor);
    assert_eq!(texts, (0, 0, None), "tokens are not counted as characters");
    let figures = fast.figures.summaries.clone().unwrap();
    // documents of 20 characters
    assert_eq!((figures.count, figures.document_tokens, figures.summary_tokens), (10, 200, 110));
    assert_eq!(figures.unpooled_cross_attention_bytes, 4 * figures.cross_attention_bytes);
    assert_eq!(figures.pooled(), Some(4.0));
    assert_eq!((figures.kept_share.count, figures.kept_share.p50), (10, Some(0.25)));
    let all = comparison.models[0].figures.summaries.clone().unwrap().kept_share;
    assert_eq!((all.min, all.max), (Some(1.0), Some(1.0)));
    let speed = figures.tokens_per_second.p50.unwrap();
    assert!((speed / (1000.0 / 3.0) - 1.0).abs() < 0.02, "{speed}");
}

#[tokio::test(start_paused = true)]
async fn rounds_that_one_model_failed_are_not_compared() {
    let mut scripts = scripts();
    scripts[1].refuse = 10;
    let comparison = compare(scripts, 30).await;
    let failed: u64 = comparison.models[1].figures.requests.errors.values().sum();
    assert!(failed > 0);
    assert_eq!((comparison.rounds, comparison.complete), (30, 30 - failed));
    assert_eq!(comparison.models[1].gains.as_ref().unwrap().total.unwrap().pairs as u64, comparison.complete);
}

#[tokio::test(start_paused = true)]
async fn bits_per_char_come_from_the_server() {
    let stub = Stub::new(scripts());
    let score = async |model| text_bits(&target(&stub, model, false).await, "some text").await;
    assert_eq!(score("fast").await.unwrap().per_char, 2.1);
    assert!(score("none").await.unwrap_err().starts_with("NOT_FOUND"));
}

/// Two rounds are both in the middle: a histogram's median is the lower one, and the gain uses their mean.
#[tokio::test(start_paused = true)]
async fn reported_medians_are_those_of_the_gain() {
    let comparison = compare_of(scripts(), 2, WorkloadSpec { output: "5..60".parse().unwrap(), ..spec(1) }).await;
    let [slow, fast] = &comparison.models[..] else { panic!("two models") };
    let medians = &slow.medians;
    let others = &fast.medians;
    let ratio = slow.figures.total_from_send_ns.p50.unwrap() / medians.total_ns.unwrap();
    assert!((ratio - 1.0).abs() > 0.01, "the two kinds of medians differ here: {ratio}");
    let gains = fast.gains.clone().unwrap();
    for (gain, slow, fast) in [
        (gains.total, medians.total_ns, others.total_ns),
        (gains.time_to_first_char, medians.time_to_first_char_ns, others.time_to_first_char_ns),
        (gains.char, medians.char_ns, others.char_ns),
    ] {
        assert_eq!(gain.unwrap().ratio, slow.unwrap() / fast.unwrap());
    }
}
