//! Comparisons of models whose gain is known.

use super::support::{ms, spec, target};
use tokio::sync::watch;
use weir_loadtest::{
    load::workload::Mix,
    pair::{Comparison, Match, play, score},
    stub::{Script, Stub},
};

/// A slow model and one three times as fast from character to character, half as slow before the first.
fn scripts() -> Vec<Script> {
    let slow = Script { first: ms(100), plain: ms(30), boundary: ms(30), ..Script::instant("slow") };
    let fast = Script {
        first: ms(50),
        plain: ms(8),
        boundary: ms(18),
        segment: 5,
        bits_per_char: 2.1,
        ..Script::instant("fast")
    };
    vec![slow, fast]
}

async fn compare(scripts: Vec<Script>, rounds: u64) -> Comparison {
    let stub = Stub::new(scripts);
    let targets = vec![target(&stub, "slow", true).await, target(&stub, "fast", true).await];
    let mix = Mix::new(&[spec(21)], 1, 0.0).unwrap();
    let (_never, stop) = watch::channel(false);
    play(Match { targets, mix, rounds, warm_up: 2, concurrency: 2, seed: 1 }, stop, |_| {}).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_known_gain_is_found() {
    let told = compare(scripts(), 20).await;
    assert_eq!((told.baseline.as_str(), told.rounds, told.complete), ("slow", 20, 20));
    assert_eq!(told.models[0].gains, None);
    let gains = told.models[1].gains.clone().unwrap();
    // after the first: 20 characters of 30 ms, against 16 of 8 and 4 of 18
    for (gain, expected) in [(gains.total, 700.0 / 250.0), (gains.time_to_first_char, 2.0), (gains.char, 3.0)] {
        let gain = gain.unwrap();
        assert!((gain.ratio / expected - 1.0).abs() < 0.02, "{gain:?} {expected}");
        assert!(gain.low.unwrap() <= gain.ratio && gain.ratio <= gain.high.unwrap());
        assert_eq!(gain.pairs, 20);
    }
    assert_eq!(told.models[1].figures.shortening_factor, Some(41.0 / 8.0));
}

#[tokio::test(start_paused = true)]
async fn rounds_that_one_model_failed_are_not_compared() {
    let mut scripts = scripts();
    scripts[1].refuse = 10;
    let told = compare(scripts, 30).await;
    let failed: u64 = told.models[1].figures.requests.errors.values().sum();
    assert!(failed > 0);
    assert_eq!((told.rounds, told.complete), (30, 30 - failed));
    assert_eq!(told.models[1].gains.as_ref().unwrap().total.unwrap().pairs as u64, told.complete);
}

#[tokio::test(start_paused = true)]
async fn bits_per_char_are_the_servers_word() {
    let stub = Stub::new(scripts());
    let fast = target(&stub, "fast", false).await;
    assert_eq!(score::bits_per_char(&fast, "some text").await, Ok(2.1));
    let none = target(&stub, "none", false).await;
    assert!(score::bits_per_char(&none, "some text").await.unwrap_err().starts_with("NOT_FOUND"));
}
