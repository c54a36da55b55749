//! Feeds that are cut after their symbol step, and generations with drafts, of every family that speculates.

use super::{Configuration, SYMBOLS, on_each};
use crate::support::{Alone, Dice, full, text_symbols};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use weir::{
    decode::{
        contract::{BoundaryOptions, SequenceRow, Want},
        options::{Details, EmittedSymbol, FinishReason, Generate, Sampling, Stopping},
        session::{Session, SessionProgress},
        speculation::{DraftBudget, MAX_DRAFT, Speculation, guess_rates::GuessRates},
        usage::Usage,
    },
    nn::window::ROLLBACK,
};

const _: () = assert!(MAX_DRAFT <= ROLLBACK, "windows keep what a rollback of a draft needs");

#[test]
fn a_cut_feed_equals_a_shorter_one() {
    on_each(|configuration, dice| {
        let model = &*configuration.model;
        if !(model.card().speculates && model.card().pooled) {
            return;
        }
        let text = configuration.text(dice);
        let symbols = model.card().vocabulary.len();
        let (logits, decisions) = full(model, &text, &configuration.boundaries);
        for _ in 0..8 {
            let start = dice.below(90);
            let more = 2 + dice.below(ROLLBACK - 2);
            let kept = 1 + dice.below(more - 1);
            let mut main = configuration.alone();
            if start > 0 {
                main.feed(&text[..start]);
            }
            main.rows[0].set(&text[start..start + more], Want::All);
            model.symbol_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
            assert!(main.rows[0].state.cut(start).is_err(), "{}: nothing would be fed", configuration.name);
            assert!(main.rows[0].state.cut(start + more + 1).is_err(), "{}: beyond the end", configuration.name);
            main.rows[0].cut(kept).unwrap();
            let end = start + kept;
            assert_eq!(main.rows[0].state.len(), end, "{}", configuration.name);
            let mut fork = Alone::from(model, SequenceRow::new(main.rows[0].state.fork()));
            model.segment_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
            model.finish_step(&mut main.rows, &[0], &mut main.scratch).unwrap();
            assert!(main.rows[0].state.cut(end - 1).is_err(), "{}: cut when ready", configuration.name);
            let name = format!("{}: {start}, {kept} of {more}", configuration.name);
            assert_eq!(main.rows[0].logits, logits[start * symbols..end * symbols], "{name}");
            assert_eq!(main.rows[0].decisions, decisions[start..end], "{name}");
            assert_eq!(main.feed(&text[end..]).0, logits[end * symbols..], "{name}");
            // the fork is the sequence before the feed
            assert_eq!(fork.feed(&text[start..]).0, logits[start * symbols..], "{name}");
        }
    });
}

/// Output of a generation, and the reason for its end.
type Output = (Vec<EmittedSymbol>, FinishReason, Usage);

/// Generates with drafts as long as the request permits.
fn with_drafts(configuration: &Configuration, request: Generate) -> Output {
    let model = &*configuration.model;
    let mut session = Session::generate(request, model.card()).unwrap();
    let mut alone = Alone::new(model, session.boundaries().clone());
    let mut emitted = Vec::new();
    let mut rates = GuessRates::default();
    loop {
        let mut budget = DraftBudget { free: 100, fixed: 4.0, symbols: 1, expected: 1.0, feeds_prompts: false };
        session.draft(&mut budget, &mut rates);
        session.feed(&mut alone.rows[0], 16);
        model.symbol_step(&mut alone.rows, &[0], &mut alone.scratch).unwrap();
        if session.has_draft() {
            alone.rows[0].cut_draft().unwrap();
        }
        model.segment_step(&mut alone.rows, &[0], &mut alone.scratch).unwrap();
        model.finish_step(&mut alone.rows, &[0], &mut alone.scratch).unwrap();
        let progress = session.absorb(&mut alone.rows[0]).unwrap();
        emitted.extend(session.take_output());
        if let SessionProgress::Finished(reason) = progress {
            assert_eq!(alone.rows[0].state.len(), session.text_symbols(), "{}", configuration.name);
            return (emitted, reason, session.usage());
        }
    }
}

fn without_drafts(configuration: &Configuration, request: Generate) -> Output {
    let mut emitted = Vec::new();
    let session = Session::generate(request, configuration.model.card()).unwrap();
    let mut emit = |symbols: Vec<_>| {
        emitted.extend(symbols);
        Ok(())
    };
    let (reason, usage) = session.run(&*configuration.model, 16, &mut emit).unwrap();
    (emitted, reason, usage)
}

fn request(configuration: &Configuration, dice: &mut Dice) -> Generate {
    let model = &*configuration.model;
    let numbers: Vec<u32> = (0..5 + dice.below(20)).map(|_| dice.below(1000) as u32).collect();
    Generate {
        prompt: text_symbols(model, &numbers.repeat(1 + dice.below(3))),
        sampling: Sampling {
            temperature: [0.0, 0.1, 1.0][dice.below(3)],
            seed: dice.below(1000) as u64,
            repetition_penalty: [1.0, 1.1][dice.below(2)],
            ..Sampling::default()
        },
        stopping: Stopping {
            max_chars: 20 + dice.below(SYMBOLS / 2),
            max_segments: model.card().pooled.then_some(12),
            ..Stopping::default()
        },
        details: Details { logprobs: true, boundaries: dice.below(2) == 0, ..Details::default() },
        boundaries: BoundaryOptions { ..configuration.boundaries.clone() },
        resumed: Vec::new(),
        speculation: Some(Speculation::UpTo(1 + dice.below(MAX_DRAFT))),
    }
}

#[test]
fn generations_with_drafts_emit_the_same_bits() {
    let accepted = AtomicUsize::new(0);
    let rejected = AtomicUsize::new(0);
    on_each(|configuration, dice| {
        if configuration.model.document_encoder().is_some() {
            return;
        }
        for _ in 0..3 {
            let request = request(configuration, dice);
            let (emitted, reason, usage) = with_drafts(configuration, request.clone());
            let expected = without_drafts(configuration, request.clone());
            let name = format!("{}, {request:?}", configuration.name);
            assert!(configuration.model.card().speculates || usage.drafted_chars == 0, "{name}");
            accepted.fetch_add(usage.accepted_chars, Relaxed);
            rejected.fetch_add(usage.drafted_chars - usage.accepted_chars, Relaxed);
            let usage = Usage { drafted_chars: 0, accepted_chars: 0, ..usage };
            assert_eq!((emitted, reason, usage), expected, "{name}");
        }
    });
    let counts = (accepted.into_inner(), rejected.into_inner());
    assert!(std::env::var_os("WEIR_CONFIGURATION").is_some() || (counts.0 > 100 && counts.1 > 100), "{counts:?}");
}
