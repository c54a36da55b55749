//! A generation that resumes after a part of its own text emits the rest, whatever its options are and however often it loses its
//! row.

use super::{jobs::*, toy_model::*};
use proptest::prelude::*;
use weir::{
    decode::{
        contract::{Model, SequenceRow, advance},
        options::{EmittedSymbol, FinishReason, Generate},
        session::{Session, SessionProgress},
        usage::Usage,
    },
    engine::{Handle, Job, Limits},
    error::Error,
};

fn request(seed: u64) -> Option<Generate> {
    match varied(seed) {
        Job::Generate(request) => Some(request),
        _ => None,
    }
}

/// Returns what a request emits after its prompt.
fn generated<'a>(request: &Generate, output: &'a JobOutput) -> &'a [EmittedSymbol] {
    &output.characters[if request.details.echo { request.prompt.len() } else { 0 }..]
}

/// Returns the request that resumes after the first `cut` of these symbols.
fn resumed(request: &Generate, generated: &[EmittedSymbol], cut: usize) -> Generate {
    Generate { resumed: generated[..cut].iter().map(|emitted| emitted.symbol).collect(), ..request.clone() }
}

/// Runs a session that loses its row after each step of `losses`.
fn run_with_losses(request: Generate, chunk: usize, losses: &[usize]) -> JobOutput {
    let toy = Toy::new();
    let mut session = Session::generate(request, toy.card()).unwrap();
    let fresh = |session: &Session| {
        let mut state = toy.begin(session.boundaries().clone()).unwrap();
        session.resume(&mut *state).unwrap();
        SequenceRow::new(state)
    };
    let mut row = fresh(&session);
    let mut scratch = toy.scratch();
    let mut characters = Vec::new();
    for step in 0.. {
        session.feed(&mut row, chunk);
        advance(&*toy, std::slice::from_mut(&mut row), &[0], &mut scratch).unwrap();
        let progress = session.absorb(&mut row).unwrap();
        characters.extend(session.take_output());
        if let SessionProgress::Finished(reason) = progress {
            return JobOutput { characters, reason, usage: session.usage() };
        }
        if losses.contains(&step) {
            session.rewind();
            row = fresh(&session);
        }
    }
    unreachable!()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_rest_is_that_of_the_whole(
        seed: u64, cut: usize, chunk in 1_usize..12, losses in prop::collection::vec(0_usize..30, 0..3),
    ) {
        let Some(request) = request(seed) else { return Ok(()) };
        let whole = alone(Job::Generate(request.clone()), chunk);
        let generated = generated(&request, &whole);
        let cut = cut % (generated.len() + 1);
        let request = resumed(&request, generated, cut);
        let rest = run_with_losses(request.clone(), chunk, &losses);
        let before = if cut == 0 { whole.characters.len() - generated.len() } else { 0 };
        prop_assert_eq!(&rest.characters[before..], &generated[cut..]);
        prop_assert_eq!(&rest.reason, &whole.reason);
        prop_assert_eq!(rest.usage, Usage { resumed_chars: cut, ..whole.usage });
    }
}

#[test]
fn the_engine_resumes_many_texts_at_once() {
    let (toy, engine) = {
        let toy = Toy::new();
        let engine = Handle::start(toy.clone(), Limits { rows: 5, chunk: 7, ..Limits::default() }).unwrap();
        (toy, engine)
    };
    let mut running = Vec::new();
    for (seed, request) in (0..120_u64).filter_map(|seed| Some((seed, request(seed)?))) {
        let whole = alone(Job::Generate(request.clone()), 9);
        let generated = generated(&request, &whole);
        let cut = (mix(seed) % (generated.len() as u64 + 1)) as usize;
        let request = resumed(&request, generated, cut);
        let before = if cut == 0 { whole.characters.len() - generated.len() } else { 0 };
        let rest = whole.characters[whole.characters.len() - generated.len() - before + cut..].to_vec();
        running.push((engine.submit(Job::Generate(request), None).unwrap(), rest, whole.reason));
    }
    for (events, characters, reason) in running {
        let output = read(events).unwrap();
        assert_eq!((output.characters, output.reason), (characters, reason));
    }
    assert_idle(&toy, &engine);
}

#[test]
fn a_complete_text_ends_without_another_symbol() {
    let request = Generate { resumed: vec![1, 2, 3], ..generate(&[1], 3) };
    let output = alone(Job::Generate(request), 8);
    assert_eq!((output.characters, output.reason), (Vec::new(), FinishReason::MaxChars));
    assert_eq!((output.usage.generated_chars, output.usage.resumed_chars), (3, 3));
    let mut request = Generate { resumed: vec![1, 2, 3, 1], ..generate(&[1], 9) };
    request.stopping.stop = vec![vec![2, 3]];
    let output = alone(Job::Generate(request), 8);
    assert_eq!((output.characters, output.reason), (Vec::new(), FinishReason::Stop(0)));
    assert_eq!(output.usage.generated_chars, 3, "the text ended with the stop string");
}

#[test]
fn a_resumed_text_has_limits() {
    let toy = Toy::new();
    let refused = |request: Generate| Session::generate(request, toy.card()).map(drop).unwrap_err();
    let long = refused(Generate { resumed: vec![1; 4], ..generate(&[1], 3) });
    assert!(matches!(long, Error::BadOption { field: "resume_text", .. }), "{long}");
    let full = refused(Generate { resumed: vec![1; 9], ..generate(&[1; MAX_SYMBOLS - 8], 20) });
    assert!(matches!(full, Error::BadOption { field: "resume_text", .. }), "{full}");
    let unknown = refused(Generate { resumed: vec![VOCABULARY as u32], ..generate(&[1], 3) });
    assert!(matches!(unknown, Error::UnknownSymbol { field: "resume_text", .. }), "{unknown}");
}
