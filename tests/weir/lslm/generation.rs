//! Generated text: greedy continuations in both boundary modes, emitted details, counts, and ends of text.

use super::{super::support::*, *};
use weir::{
    decode::{
        contract::{BoundaryMode, BoundaryOptions},
        options::{Details, EmittedSymbol, FinishReason, Generate, Sampling, Stopping},
        session::Session,
        usage::Usage,
    },
    engine::{Event, Handle, Job, Limits},
};

fn greedy(prompt: &[u32], max_chars: usize, mode: BoundaryMode) -> Generate {
    Generate {
        prompt: prompt.to_vec(),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        stopping: Stopping {
            max_chars,
            min_chars: 0,
            max_segments: None,
            stop: Vec::new(),
            include_stop: false,
            ignore_end: false,
        },
        details: Details { boundaries: true, echo: true, ..Details::default() },
        boundaries: BoundaryOptions { mode: Some(mode), ..BoundaryOptions::default() },
        resumed: Vec::new(),
        speculation: None,
    }
}

fn run(engine: &Handle, job: Generate) -> (Vec<EmittedSymbol>, FinishReason, Usage) {
    let mut events = engine.submit(Job::Generate(job), None).unwrap();
    let mut emitted = Vec::new();
    loop {
        match events.blocking_recv().unwrap().unwrap() {
            Event::Started { .. } | Event::Coded(_) | Event::Next(_) | Event::Document(_) => {}
            Event::Characters(characters) => emitted.extend(characters),
            Event::Finished { reason, usage, .. } => return (emitted, reason, usage),
        }
    }
}

#[test]
fn greedy_texts_equal_the_golden_data() {
    for case in Case::all() {
        let engine = Handle::start(case.model.clone(), Limits { rows: 2, ..Limits::default() }).unwrap();
        let specials = case.specials();
        for prompt in ["open", "closed", "empty", "eos"] {
            for (name, mode) in [("nxt", BoundaryMode::Nxt), ("predictor", BoundaryMode::Predictor)] {
                let name = format!("gen.{prompt}.{name}");
                if !case.golden.has(&format!("{name}.events")) {
                    continue;
                }
                let prompt_ids = &case.golden.ids(&format!("{name}.prompt_ids"))[1..];
                let text = case.golden.ids(&format!("{name}.text_ids"));
                let ends = text.last() == Some(&specials.end);
                let (emitted, reason, usage) = run(&engine, greedy(prompt_ids, text.len() + usize::from(ends), mode));
                let context = format!("{} {name}", case.name);
                assert_eq!(reason, if ends { FinishReason::EndOfText } else { FinishReason::MaxChars }, "{context}");
                let (echo, answer) = emitted.split_at(prompt_ids.len());
                assert_eq!(answer.iter().map(|character| character.symbol).collect::<Vec<_>>(), text, "{context}");
                let cuts: Vec<f32> = std::iter::once(1.0)
                    .chain(
                        echo.iter()
                            .chain(answer)
                            .filter_map(|character| character.decision)
                            .map(|decision| f32::from(u8::from(decision.boundary))),
                    )
                    .collect();
                assert_eq!(cuts, case.golden.get(&format!("{name}.z")), "{context}");
                let events = case.golden.ids(&format!("{name}.events"));
                let nxt = events.iter().filter(|&&event| event == specials.segment_end).count();
                assert_eq!(
                    (usage.nxt_steps, usage.generated_chars),
                    (nxt, text.len() - usize::from(ends)),
                    "{context}"
                );
                let closed = cuts[1 + prompt_ids.len()..].iter().filter(|&&cut| cut == 1.0).count();
                assert_eq!(usage.generated_segments, closed, "{context}");
            }
        }
        drop(engine);
        assert_eq!(case.model.memory().in_use, 0, "{}", case.name);
    }
}

#[test]
fn the_first_logits_equal_the_golden_data() {
    for case in Case::all() {
        let golden = case.golden.row("gen.empty.nxt.first_logits", 0);
        assert!(difference(case.first_logits(), golden) <= LOGITS, "{}", case.name);
    }
}

/// At any seed, sampling never emits a special symbol or an empty segment.
#[test]
fn sampled_texts_have_only_text_symbols_and_no_empty_segment() {
    for case in Case::all() {
        let engine = Handle::start(case.model.clone(), Limits::default()).unwrap();
        let specials = case.specials();
        for seed in 0..12 {
            for mode in [BoundaryMode::Nxt, BoundaryMode::Predictor] {
                let mut job = greedy(&[], 80, mode);
                job.sampling = Sampling { temperature: 3.0, seed, ..Sampling::default() };
                job.stopping.ignore_end = seed % 2 == 0;
                let (emitted, reason, usage) = run(&engine, job.clone());
                let ended = reason == FinishReason::EndOfText;
                assert!(!(ended && job.stopping.ignore_end), "{}", case.name);
                let symbols = &emitted[..emitted.len() - usize::from(ended)];
                assert!(symbols.iter().all(|character| !specials.contains(character.symbol)), "{}", case.name);
                assert_eq!(symbols.len(), usage.generated_chars);
                assert!(usage.nxt_steps <= usage.generated_chars, "{}: a segment has a symbol", case.name);
                assert_eq!(usage.nxt_steps, if mode == BoundaryMode::Nxt { usage.generated_segments } else { 0 });
                // A draw depends only on the seed and its position.
                let again = run(&engine, job);
                assert_eq!((emitted, reason, usage.generated_chars), (again.0, again.1, again.2.generated_chars));
            }
        }
    }
}

#[test]
fn min_chars_and_max_segments_control_the_end() {
    let case = Case::load("hops0");
    let engine = Handle::start(case.model.clone(), Limits::default()).unwrap();
    let prompt_ids = case.golden.ids("gen.eos.nxt.prompt_ids");
    let mut job = greedy(&prompt_ids[1..], 40, BoundaryMode::Nxt);
    assert_eq!(run(&engine, job.clone()).1, FinishReason::EndOfText);
    job.stopping.min_chars = 30;
    let (_, _, usage) = run(&engine, job.clone());
    assert!(usage.generated_chars >= 30, "{usage:?}");
    job.stopping = Stopping { max_segments: Some(3), ignore_end: true, min_chars: 0, ..job.stopping };
    let (emitted, reason, usage) = run(&engine, job);
    assert_eq!((reason, usage.generated_segments), (FinishReason::MaxSegments, 3));
    assert!(emitted.last().unwrap().decision.unwrap().boundary, "the text ends at a segment's end");
}

/// Generating and scoring a text report the same log-probabilities and boundary decisions.
#[test]
fn generating_and_scoring_report_the_same_details() {
    for case in Case::all() {
        let mut job = greedy(&[], 40, BoundaryMode::Predictor);
        job.details = Details { logprobs: true, boundaries: true, ..Details::default() };
        let mut generated = Vec::new();
        let emit = &mut |characters: Vec<EmittedSymbol>| {
            generated.extend(characters);
            Ok(())
        };
        Session::generate(job, case.model.card()).unwrap().run(&*case.model, 64, emit).unwrap();
        let text: Vec<u32> = generated.iter().map(|character| character.symbol).collect();
        let text = text.strip_suffix(&[case.specials().end]).unwrap_or(&text);
        let score = weir::decode::options::Score {
            symbols: text.to_vec(),
            logprobs: true,
            top: 0,
            boundaries: BoundaryOptions::default(),
            windows: None,
        };
        let mut scored = Vec::new();
        let emit = &mut |characters: Vec<EmittedSymbol>| {
            scored.extend(characters);
            Ok(())
        };
        Session::score(score, case.model.card()).unwrap().run(&*case.model, 7, emit).unwrap();
        for (generated, scored) in generated.iter().zip(&scored) {
            assert_eq!((generated.symbol, generated.logprob), (scored.symbol, scored.logprob), "{}", case.name);
            let generated = generated.decision.unwrap();
            let scored = scored.decision.unwrap();
            assert_eq!(
                (generated.boundary, generated.probability),
                (scored.boundary, scored.probability),
                "{}",
                case.name
            );
            assert_eq!(scored.end_logprob.is_some(), scored.boundary, "{}", case.name);
        }
        assert!(scored[0].logprob.is_some(), "{}: the first symbol has a probability", case.name);
    }
}
