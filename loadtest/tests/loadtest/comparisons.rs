//! Comparisons of models whose gain is known.

use super::support::{ms, spec, target};
use tokio::sync::watch;
use weir_loadtest::{
    comparison::{ComparisonSetup, ModelComparison, play, score},
    load::workload::{WorkloadMix, WorkloadSpec},
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
        gain: Some(2.75),
        ..Script::instant("fast")
    };
    vec![slow, fast]
}

/// With answers of 5 to 60 characters.
async fn compare_lengths(rounds: u64) -> ModelComparison {
    compare_of(scripts(), rounds, WorkloadSpec { output: "5..60".parse().unwrap(), ..spec(1) }).await
}

async fn compare(scripts: Vec<Script>, rounds: u64) -> ModelComparison {
    compare_of(scripts, rounds, spec(21)).await
}

async fn compare_of(scripts: Vec<Script>, rounds: u64, spec: WorkloadSpec) -> ModelComparison {
    let stub = Stub::new(scripts);
    let targets = vec![target(&stub, "slow", true).await, target(&stub, "fast", true).await];
    let mix = WorkloadMix::new(&[spec], 1, 0.0).unwrap();
    let (_never, stop) = watch::channel(false);
    play(
        ComparisonSetup { targets, mix, rounds, warm_up: 2, concurrency: 2, seed: 1, threads: 1 },
        (stop, false),
        |_| {},
    )
    .await
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_known_gain_is_found() {
    let told = compare(scripts(), 20).await;
    assert_eq!((told.baseline.as_str(), told.rounds, told.complete), ("slow", 20, 20));
    assert_eq!(told.models[0].gains, None);
    // what the tester took is told: all messages of both, those of the warm-up, too
    let tester = told.tester.clone().unwrap();
    assert_eq!((tester.threads, tester.connections, &tester.limits[..]), (1, 2, &[][..]));
    assert!(tester.messages_per_second > 0.0 && tester.cpu_ns.is_some_and(|ns| ns > 0));
    let gains = told.models[1].gains.clone().unwrap();
    // after the first: 20 characters of 30 ms, against 16 of 8 and 4 of 18
    for (gain, expected) in [(gains.total, 700.0 / 250.0), (gains.time_to_first_char, 2.0), (gains.char, 3.0)] {
        let gain = gain.unwrap();
        assert!((gain.ratio / expected - 1.0).abs() < 0.02, "{gain:?} {expected}");
        assert!(gain.low.unwrap() <= gain.ratio && gain.ratio <= gain.high.unwrap());
        assert_eq!(gain.pairs, 20);
    }
    assert_eq!(told.models[1].figures.shortening_factor, Some(41.0 / 8.0));
    // what the server estimates stands beside it, of the same rounds, and is told as what it is
    assert_eq!(told.models[0].estimated, None);
    let estimated = told.models[1].estimated.clone().unwrap();
    for gain in [estimated.total, estimated.time_to_first_char, estimated.char] {
        assert!((gain.unwrap().ratio / 2.75 - 1.0).abs() < 0.01, "{gain:?}");
    }
    let [(_, total), (_, char)] = told.models[1].disagreement()[..] else { panic!("two figures are compared") };
    assert!((total - (2.75 / 2.8 - 1.0)).abs() < 0.03 && (char - (2.75 / 3.0 - 1.0)).abs() < 0.03, "{total} {char}");
}

#[tokio::test(start_paused = true)]
async fn an_estimate_agrees_if_it_is_near_enough() {
    // 8.3 % below what is measured of a character, and 1.8 % below that of the total
    let told = compare(scripts(), 10).await;
    told.agrees(10.0).unwrap();
    let far = told.agrees(5.0).unwrap_err().to_string();
    assert!(
        far.starts_with("fast, per character: the estimated gain is -8.") && far.ends_with("more than 5 %"),
        "{far}"
    );
    for (gain, agrees) in [(2.9, true), (3.4, false), (2.0, false), (6.0, false)] {
        let mut scripts = scripts();
        scripts[1].gain = Some(gain);
        assert_eq!(compare(scripts, 10).await.agrees(10.0).is_ok(), agrees, "{gain}");
    }
    let mut silent = scripts();
    silent[1].gain = None;
    assert!(compare(silent, 10).await.agrees(10.0).unwrap_err().to_string().contains("no estimate"));
}

/// Summarizers: one whose documents take 80 ms to encode and tokens 6 ms, and one that is four and twice as fast.
#[tokio::test(start_paused = true)]
async fn a_known_gain_of_summaries_is_found() {
    let slow = Script { first: ms(80), plain: ms(6), summarizes: true, ..Script::instant("slow") };
    let fast = Script { first: ms(20), plain: ms(3), segment: 4, ..Script { name: "fast".into(), ..slow.clone() } };
    let stub = Stub::new(vec![slow, fast]);
    let targets = vec![target(&stub, "slow", false).await, target(&stub, "fast", false).await];
    let mix = WorkloadMix::new(&[WorkloadSpec { kind: "summarize".into(), ..spec(11) }], 1, 0.0).unwrap();
    let (_never, stop) = watch::channel(false);
    let plan = ComparisonSetup { targets, mix, rounds: 10, warm_up: 1, concurrency: 1, seed: 1, threads: 1 };
    let told = play(plan, (stop, false), |_| {}).await.unwrap();
    assert_eq!(told.complete, 10);
    let gains = told.models[1].gains.clone().unwrap();
    for (gain, expected) in [(gains.encode, 4.0), (gains.decode_token, 2.0), (gains.total, 140.0 / 50.0)] {
        assert!((gain.unwrap().ratio / expected - 1.0).abs() < 0.02, "{gain:?} {expected}");
    }
    assert_eq!(gains.char, None, "characters of other texts");
    let figures = told.models[1].figures.summaries.clone().unwrap();
    let texts = &told.models[1].figures;
    assert_eq!(
        (texts.prompt_chars, texts.cached_chars, texts.shortening_factor),
        (0, 0, None),
        "tokens are no characters"
    );
    // documents of 20 characters, in three chunks
    assert_eq!((figures.count, figures.document_tokens, figures.summary_tokens), (10, 200, 110));
    assert_eq!(figures.unpooled_cross_attention_bytes, 4 * figures.cross_attention_bytes);
    assert_eq!(figures.pooled(), Some(4.0));
    let speed = figures.tokens_per_second.p50.unwrap();
    assert!((speed / (1000.0 / 3.0) - 1.0).abs() < 0.02, "{speed}");
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

/// Of two rounds both are in the middle: a histogram tells the lower one, and the gain is of their mean.
#[tokio::test(start_paused = true)]
async fn the_medians_that_are_told_are_those_of_the_gain() {
    let told = compare_lengths(2).await;
    let [slow, fast] = &told.models[..] else { panic!("two models") };
    let (medians, others) = (slow.medians.clone().unwrap(), fast.medians.clone().unwrap());
    let (of_histogram, total) = (slow.figures.total_from_send_ns.p50.unwrap(), medians.total_ns.unwrap());
    assert!((of_histogram / total - 1.0).abs() > 0.01, "{of_histogram} and {total} differ here");
    let gains = fast.gains.clone().unwrap();
    for (gain, slow, fast) in [
        (gains.total, medians.total_ns, others.total_ns),
        (gains.time_to_first_char, medians.time_to_first_char_ns, others.time_to_first_char_ns),
        (gains.char, medians.char_ns, others.char_ns),
    ] {
        assert_eq!(gain.unwrap().ratio, slow.unwrap() / fast.unwrap());
    }
    // and it is they that tables tell
    assert_eq!(slow.told(), medians);
}
