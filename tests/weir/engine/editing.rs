//! Sessions that edit a document give the results of cold requests for the same text, bit for bit, after any edits.

use super::*;
use crate::engine::harness::{counting_evictions, drive, fresh_row};
use crate::toy_model::RequestCounts;
use weir::engine::completion::{
    CompletionEnd, CompletionRules, Distribution, Lookahead, NextDistributions, NextSymbol,
};
use weir::engine::constraint::{Constraint, without_limit};
use weir::engine::edited_text::Splice;
use weir::engine::editing::{Completions, EditSession, Scores, received};

use weir::kernels::error::floor_boundary;
use weir::models::contract::Exactness;

const TEXT_BYTES: usize = 2000;

fn engine(model: &Arc<dyn Model>) -> Handle {
    Handle::start(Arc::clone(model), Limits { cache_bytes: 1 << 24, ..Limits::default() }).unwrap()
}

fn open(engine: &Handle, text: &str) -> EditSession {
    EditSession::open(engine.clone(), Terms::default(), text.to_owned(), 0, TEXT_BYTES).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn complete(session: &EditSession, cursor: usize, rules: CompletionRules) -> Completions {
    block_on(session.complete(cursor, rules).unwrap().run()).unwrap()
}

fn score(session: &EditSession, range: std::ops::Range<usize>) -> Scores {
    block_on(session.score(range).unwrap().run()).unwrap()
}

/// Returns the completions of a session, and of a session on an engine that has read nothing, after comparing them.
fn compared(
    session: &EditSession,
    cold: &EditSession,
    cursor: usize,
    rules: CompletionRules,
) -> (Completions, Completions) {
    let own = complete(session, cursor, rules);
    let expected = complete(cold, cursor, rules);
    let text = session.text().text();
    assert_eq!((&own.items, own.is_cut), (&expected.items, expected.is_cut), "{text:?} at {cursor}");
    assert_eq!(own.expansions, expected.expansions, "{text:?} at {cursor}");
    (own, expected)
}

/// Returns characters of the model: letters and spaces, if it has them.
fn alphabet(model: &dyn Model) -> Vec<char> {
    let vocabulary = &model.card().vocabulary;
    let readable = |text: &str| vocabulary.encode_exactly("text", text).is_ok_and(|ids| ids.len() == 1);
    let letters: Vec<char> = " abcdef".chars().filter(|letter| readable(&letter.to_string())).collect();
    if letters.len() > 1 {
        return letters;
    }
    let texts = vocabulary.text_ids().map(|id| vocabulary.decode(&[id])).filter(|text| readable(text));
    texts.filter_map(|text| text.chars().next()).take(7).collect()
}

fn words(rng: &mut Random, alphabet: &[char], length: usize) -> String {
    (0..length).map(|_| alphabet[rng.below(alphabet.len())]).collect()
}

/// Returns the edge of a character of the text.
fn edge(rng: &mut Random, text: &str) -> usize {
    let edges: Vec<usize> = text.char_indices().map(|(start, _)| start).chain([text.len()]).collect();
    edges[rng.below(edges.len())]
}

/// Returns the scores of a text's last `count` symbols.
fn scored(engine: &Handle, symbols: &[u32], count: usize) -> Vec<EmittedSymbol> {
    let score = Score { symbols: symbols.to_vec(), logprobs: true, ..Score::default() };
    let mut scored = read(engine.submit(Job::Score(score), None).unwrap()).unwrap().characters;
    scored.split_off(scored.len() - count)
}

#[test]
fn edits_give_the_results_of_cold_requests() {
    for (number, model) in small_models().into_iter().enumerate() {
        let name = model.card().name.clone();
        let mut rng = Random::new(number as u64 + 1);
        let warm = engine(&model);
        let alphabet = alphabet(&*model);
        let mut session = open(&warm, &words(&mut rng, &alphabet, 60));
        session.keep_distributions(1 << 14);
        session.keep_symbols(1 << 14);
        let mut fork = session.clone();
        let mut reused = 0;
        let mut reused_distributions = 0;
        let mut skipped = 0;
        // between three successive comparisons and the next three
        let (splices, between) = if long_runs() { (17_000, 20) } else { (500, 125) };
        for round in 1..=splices {
            match rng.below(40) {
                0 => fork = session.clone(),
                1 => std::mem::swap(&mut session, &mut fork),
                _ => {}
            }
            let before = session.text().text().to_owned();
            let start = edge(&mut rng, &before);
            let end =
                before[start..].char_indices().nth(rng.below(12)).map_or(before.len(), |(offset, _)| start + offset);
            // the text stays within the context of the smallest model
            let longest = if before.chars().count() > 100 { 1 } else { 12 };
            let added = rng.below(longest);
            let text = words(&mut rng, &alphabet, added);
            session.splice(round, &[Splice { range: start..end, text }]).unwrap();
            if round % between > 2 || session.text().text().chars().count() < 20 {
                continue;
            }
            let text = session.text().text().to_owned();
            let cold_engine = engine(&model);
            let cold = open(&cold_engine, &text);
            let kept = text.chars().count() - rng.below(12);
            let cursor = text.char_indices().nth(kept).map_or(text.len(), |(offset, _)| offset);
            let has_segment_ends = model.card().pooled && !model.card().begins_chunks;
            let ends = [CompletionEnd::Length, CompletionEnd::Word, CompletionEnd::Segment];
            let end = ends[rng.below(if has_segment_ends { 3 } else { 2 })];
            // long enough for requests that look ahead
            let max_chars = if rng.below(16) == 0 { 4 } else { 2 };
            let rules = CompletionRules { count: 3, end, max_chars };
            let (own, expected) = compared(&session, &cold, cursor, rules);
            assert_eq!(expected.reused_distributions, 0, "{name}: a session that keeps none");
            let again = complete(&session, cursor, rules);
            assert_eq!(again.items, own.items, "{name}, asked again");
            reused_distributions += again.reused_distributions;
            assert_eq!(own.reused + own.recomputed, expected.recomputed, "{name}");
            reused += own.reused;
            if end == CompletionEnd::Length {
                let prefix = model.card().encode("text", &text[..cursor]).unwrap();
                // a shorter one ends with the model's end mark, which is no part of the text
                for item in own.items.iter().filter(|item| item.symbols.len() == rules.max_chars) {
                    let score = scored(&cold_engine, &[&prefix[..], &item.symbols].concat(), item.symbols.len());
                    let sum: f64 = score.iter().map(|character| f64::from(character.logprob.unwrap())).sum();
                    assert!((sum - item.logprob).abs() < 1e-4, "{name}: {sum} {item:?}");
                    let has_boundary = |index: &usize| score[*index].decision.is_some_and(|decision| decision.boundary);
                    let expected: Vec<usize> = (0..rules.max_chars - 1).filter(has_boundary).collect();
                    assert_eq!(item.boundaries, expected, "{name}: {item:?}");
                }
            }
            let range =
                edge(&mut rng, &text[..text.char_indices().nth(kept / 2).map_or(0, |(offset, _)| offset)])..cursor;
            let own = score(&session, range.clone());
            let read = model.card().encode("text", &text[..range.end]).unwrap();
            let whole = scored(&cold_engine, &read, own.characters.len());
            assert!(own.characters == whole && !whole.is_empty(), "{name}, {text:?}, {range:?}");
            assert_eq!(own.start_bytes, score(&cold, range).start_bytes, "{name}");
            skipped += read.len() - own.recomputed;
        }
        assert!(reused > 0, "{name}: no edit found the state before it");
        assert!(reused_distributions > 0, "{name}: no search found a distribution");
        assert_eq!(skipped > 0, model.card().exactness == Exactness::Bitwise, "{name}: scores of cached texts");
        drop(session);
        drop(fork);
        drop(warm);
        assert_eq!(model.memory().in_use, 0, "{name}");
    }
}

/// A typist who takes characters back and edits the text before the word gets what a session without a cache gets.
#[test]
fn keystrokes_reuse_what_the_last_searches_computed() {
    for model in [fixture_in("whitespaces", Dtype::Int8), model_of("torchscale", "alibi_bca", Dtype::F32)] {
        let name = model.card().name.clone();
        let alphabet = alphabet(&*model);
        let mut rng = Random::new(7);
        let warm = engine(&model);
        let mut session = open(&warm, &words(&mut rng, &alphabet, 30));
        session.keep_distributions(1 << 22);
        let rules = CompletionRules { count: 2, end: CompletionEnd::Length, max_chars: 2 };
        let mut computed = 0;
        let mut needed = 0;
        for round in 1..40 {
            let len = session.text().text().len();
            let typed = alphabet[rng.below(alphabet.len())].to_string();
            let last = session.text().text().chars().last().map_or(0, char::len_utf8);
            let splice = match rng.below(8) {
                0 => Splice { range: 0..session.text().text().chars().next().map_or(0, char::len_utf8), text: typed },
                1 | 2 if len > 20 => Splice { range: len - last..len, text: String::new() },
                _ if len > 60 => Splice { range: len - last..len, text: String::new() },
                _ => Splice { range: len..len, text: typed },
            };
            session.splice(round, &[splice]).unwrap();
            let text = session.text().text().to_owned();
            let cold_engine = engine(&model);
            let cold = open(&cold_engine, &text);
            let (own, expected) = compared(&session, &cold, text.len(), rules);
            computed += own.distributions;
            needed += expected.distributions;
            // asked again, nothing is computed
            let again = complete(&session, text.len(), rules);
            assert_eq!((again.distributions, again.recomputed, &again.items), (0, 0, &own.items), "{name}");
        }
        assert!(computed * 10 < needed * 9, "{name}: {computed} of {needed}");
    }
}

/// The memory that is reserved for scores suffices for a text that is spelled out.
#[test]
fn spelled_out_digits_fit_the_bytes_of_a_score() {
    let model = fixture_in("whitespaces", Dtype::F32);
    let engine = engine(&model);
    let card = model.card();
    for part in ["3", "3a", "a"] {
        let text = part.repeat(240.min(card.max_symbols / 7) / part.len());
        let symbols = card.encode("text", &text).unwrap();
        let held = symbols.capacity() * size_of::<u32>() + 256 * symbols.len();
        let reserved = open(&engine, &text).score_bytes(&(0..text.len()));
        assert!((held..16 * held).contains(&reserved), "{part}: {held} of {reserved}");
    }
}

#[test]
fn a_distribution_of_the_empty_text_is_not_computed() {
    let engine = engine(&model_of("lslm", "dp", Dtype::F32));
    let session = open(&engine, "");
    let rules = CompletionRules { count: 2, end: CompletionEnd::Length, max_chars: 1 };
    let found = complete(&session, 0, rules);
    assert_eq!((found.items.len(), found.distributions, found.reused_distributions), (2, 0, 0));
}

/// A search computes the distributions after many segments that the text does not have. They must not displace other texts.
#[test]
fn a_search_adds_no_entries_for_segments_that_it_tries() {
    let model = fixture_in("whitespaces", Dtype::F32);
    let engine = engine(&model);
    let text = "abc de ".repeat(12);
    let mut session = open(&engine, &text);
    let complete = |session: &EditSession, end| {
        let rules = CompletionRules { count: 16, end, max_chars: 4 };
        let found = complete(session, session.text().text().len(), rules);
        assert!(found.distributions > 20, "{end:?}: {} distributions", found.distributions);
        found
    };
    for end in [CompletionEnd::Segment, CompletionEnd::Length] {
        complete(&session, end);
        assert_eq!(engine.segment_cache_usage().entries, 1, "{end:?}");
    }
    // a segment that the text has is an entry, which takes the place of the shorter one
    session.splice(1, &[Splice { range: text.len()..text.len(), text: "ab c".into() }]).unwrap();
    assert!(complete(&session, CompletionEnd::Segment).reused >= text.len());
    assert_eq!(engine.segment_cache_usage().entries, 1);
}

/// The states of a text may be evicted while the session still has a distribution after it.
#[test]
fn an_evicted_text_is_read_once() {
    let pooled = fixture_in("whitespaces", Dtype::F32);
    let unpooled = fixture_in("vanilla", Dtype::F32);
    for (model, end) in
        [(&pooled, CompletionEnd::Length), (&pooled, CompletionEnd::Segment), (&unpooled, CompletionEnd::Length)]
    {
        read_once(model, end);
    }
}

fn read_once(model: &Arc<dyn Model>, end: CompletionEnd) {
    let text = "abc de ".repeat(12);
    let rules = |max_chars| CompletionRules { count: 3, end, max_chars };
    let complete = |session: &EditSession, rules| complete(session, text.len(), rules);
    let cold_engine = engine(model);
    let cold = complete(&open(&cold_engine, &text), rules(3));
    let measured = engine(model);
    complete(&open(&measured, &text), rules(1));
    let cache_bytes = 8 * measured.segment_cache_usage().bytes;
    let (small, evicted) = counting_evictions(model, Limits { cache_bytes, ..Limits::default() });
    let session = open(&small, &text);
    session.keep_distributions(1 << 16);
    assert_eq!(complete(&session, rules(1)).distributions, 1);
    // other texts take the place of its state, which is the least recently used one
    for number in 0..40_u8 {
        let letters = [char::from(b'f' + number % 20), if number < 20 { 'b' } else { 'c' }];
        let other = text.replace("ab", &String::from_iter(letters));
        complete(&open(&small, &other), rules(1));
    }
    assert!(evicted.load(SeqCst) > 4);
    let before = small.counters().prefill_chars;
    let warm = complete(&session, rules(3));
    let fed = small.counters().prefill_chars - before;
    assert_eq!((&warm.items, warm.reused, warm.recomputed), (&cold.items, 0, text.len()));
    assert_eq!((warm.expansions, warm.reused_distributions), (cold.expansions, 1));
    // the other requests feed some characters of the last word
    let most = text.len() + 10 * warm.distributions;
    assert!(fed as usize <= most && warm.distributions > 8, "{fed} characters, {} distributions", warm.distributions);
}

/// Returns models with windows, whose texts may have any length.
fn models() -> Vec<Arc<dyn Model>> {
    let wanted = ["windows", "learned-windows", "xpos, blocks of 11"];
    let all = hourglass::shapes().into_iter().chain(decoder::shapes());
    let models: Vec<_> = all.filter(|(name, _)| wanted.contains(&name.as_str())).map(|(_, model)| model).collect();
    assert_eq!(models.len(), wanted.len());
    models
}

fn open_long(engine: &Handle, text: &str) -> EditSession {
    EditSession::open(engine.clone(), Terms::default(), text.to_owned(), 0, 50_000).unwrap()
}

/// Sessions keep their symbols or not, and the states of their texts are in the cache or were evicted.
#[test]
fn edits_of_a_long_text_give_the_results_of_cold_requests() {
    let rules = CompletionRules { count: 2, end: CompletionEnd::Length, max_chars: 2 };
    // every fourth splice is followed by a comparison
    let (text_bytes, splices) = if long_runs() { (6_000, 80) } else { (3_000, 24) };
    for (number, model) in models().into_iter().enumerate() {
        let name = model.card().name.clone();
        let engine =
            |cache_bytes| Handle::start(Arc::clone(&model), Limits { cache_bytes, ..Limits::default() }).unwrap();
        for (cache_bytes, symbol_bytes) in [(1 << 24, 1 << 20), (1 << 24, 0), (1, 1 << 20)] {
            let mut rng = Random::new(10 * number as u64 + 1);
            let alphabet = alphabet(&*model);
            let warm = engine(cache_bytes);
            let mut session = open_long(&warm, &words(&mut rng, &alphabet, text_bytes));
            session.keep_symbols(symbol_bytes);
            let mut fork = session.clone();
            let mut reused = 0;
            for round in 1..=splices {
                match rng.below(20) {
                    0 => fork = session.clone(),
                    1 => std::mem::swap(&mut session, &mut fork),
                    _ => {}
                }
                let text = session.text().text();
                let start =
                    if rng.below(6) > 0 { text.len().saturating_sub(rng.below(8)) } else { edge(&mut rng, text) };
                let start = floor_boundary(text, start);
                let removed = if rng.below(10) == 0 { text_bytes / 2 } else { rng.below(4) };
                let end = floor_boundary(text, start + removed).max(start);
                let added = if rng.below(10) == 0 { text_bytes / 2 } else { rng.below(3) };
                let typed = words(&mut rng, &alphabet, added);
                session.splice(round, &[Splice { range: start..end, text: typed }]).unwrap();
                if round % 4 != 0 {
                    continue;
                }
                let text = session.text().text().to_owned();
                let cursor = if rng.below(4) == 0 { edge(&mut rng, &text) } else { text.len() };
                let cursor = if cursor == 0 { text.len() } else { cursor };
                let cold_engine = engine(1 << 24);
                let (own, _) = compared(&session, &open_long(&cold_engine, &text), cursor, rules);
                reused += own.reused;
            }
            assert_eq!(reused > 0, cache_bytes > 1, "{name}: {reused}");
            drop((session, fork, warm));
            assert_eq!(model.memory().in_use, 0, "{name}");
        }
    }
}

fn small_models() -> [Arc<dyn Model>; 7] {
    [
        fixture_in("whitespaces", Dtype::Int8),
        fixture_in("gumbel", Dtype::F32),
        model_of("lslm", "dp", Dtype::F32),
        model_of("hnet", "two_stage", Dtype::F32),
        model_of("torchscale", "xpos_sliding", Dtype::F32),
        model_of("torchscale", "alibi_bca", Dtype::F32),
        model_of("blt", "windows", Dtype::F32),
    ]
}

/// Returns a request that looks ahead by `ahead` symbols of texts.
pub(super) fn next(model: &dyn Model, symbols: &[u32], ahead: usize) -> NextSymbol {
    let vocabulary = &model.card().vocabulary;
    let mut allowed = vec![false; vocabulary.len()];
    vocabulary.text_ids().for_each(|id| allowed[id as usize] = true);
    let min_logprob = f64::NEG_INFINITY;
    let lookahead = Lookahead { max_symbols: ahead, allowed: allowed.into(), min_logprob, stops_at_boundary: false };
    NextSymbol { symbols: symbols.to_vec().into(), boundaries: BoundaryOptions::default(), lookahead }
}

/// Runs a request. Returns its distributions, and the symbols that it found in the cache.
fn run(engine: &Handle, request: NextSymbol) -> (NextDistributions, usize) {
    let mut events = engine.submit(Job::Next(request), None).unwrap();
    let mut found = None;
    let mut cached = 0;
    while let Some(event) = events.blocking_recv() {
        match event.unwrap() {
            Event::Started { cached_chars } => cached = cached_chars,
            Event::Next(distributions) => found = Some(distributions),
            _ => {}
        }
    }
    (found.unwrap(), cached)
}

/// Returns the distribution after a text, computed by an engine of its own.
fn cold(model: &Arc<dyn Model>, symbols: &[u32]) -> Distribution {
    let (found, cached) = run(&engine(model), next(&**model, symbols, 0));
    assert_eq!((found.symbols.len(), found.distributions.len(), cached), (0, 1, 0));
    found.distributions.into_iter().next().unwrap()
}

#[test]
fn distributions_are_those_of_requests_for_each_text() {
    for (number, model) in small_models().into_iter().enumerate() {
        let name = model.card().name.clone();
        let mut most = 0;
        let mut rng = Random::new(number as u64 + 1);
        let alphabet = alphabet(&*model);
        let warm = engine(&model);
        for length in [1, 9, 30] {
            let text = words(&mut rng, &alphabet, length);
            let text = model.card().encode("text", &text).unwrap();
            let other = model.card().encode("text", &words(&mut rng, &alphabet, 1)).unwrap();
            let (found, _) = run(&warm, next(&*model, &text, 4));
            assert_eq!(found.distributions.len(), found.symbols.len() + 1, "{name}");
            most = most.max(found.symbols.len());
            for (ahead, distribution) in found.distributions.iter().enumerate() {
                let text = [&text[..], &found.symbols[..ahead]].concat();
                assert_eq!(*distribution, cold(&model, &text), "{name}: {ahead} symbols after {length}");
                if let Some(&appended) = found.symbols.get(ahead) {
                    let best = distribution.logits.iter().fold(f32::NEG_INFINITY, |best, logit| best.max(*logit));
                    assert_eq!(distribution.logits[appended as usize], best, "{name}");
                }
                // another continuation begins from the state on the way
                let other = [&text[..], &other].concat();
                let (after, cached) = run(&warm, next(&*model, &other, 0));
                assert_eq!(after.distributions, [cold(&model, &other)], "{name}: after {ahead} symbols");
                assert_eq!(cached, text.len(), "{name}: after {ahead} symbols");
            }
        }
        assert_eq!(most, 4, "{name}");
        drop(warm);
        assert_eq!(model.memory().in_use, 0, "{name}");
    }
}

#[test]
fn a_request_that_loses_its_row_has_the_same_distributions() {
    let mut most = 0;
    for model in small_models() {
        let name = model.card().name.clone();
        let alphabet = alphabet(&*model);
        let text = words(&mut Random::new(3), &alphabet, 10);
        let text = model.card().encode("text", &text).unwrap();
        let run = |loss: Option<usize>| {
            let mut session = Session::next_symbol(next(&*model, &text, 4), model.card()).unwrap();
            let mut row = fresh_row(&*model, &session);
            let lose = |session: &mut Session, row: &mut SequenceRow, step, _| {
                if loss == Some(step) {
                    session.rewind();
                    *row = fresh_row(&*model, session);
                }
            };
            let (output, last_step) = drive(&mut session, &*model, &mut row, 4, lose);
            (session.take_distributions().unwrap(), output.usage.prompt_chars, last_step + 1)
        };
        let (expected, prompt, steps) = run(None);
        let ahead = expected.symbols.len();
        assert_eq!((expected.distributions.len(), prompt), (ahead + 1, text.len()), "{name}");
        assert_eq!(steps, text.len().div_ceil(4) + ahead, "{name}");
        most = most.max(ahead);
        for loss in 1..steps {
            let (found, prompt, _) = run(Some(loss));
            assert_eq!((&found, prompt), (&expected, text.len()), "{name}: lost after {loss} steps");
        }
    }
    assert_eq!(most, 4);
}

#[test]
fn a_step_that_the_queue_cannot_hold_is_accounted_for() {
    let ends = Arc::<RequestCounts>::default();
    let limits = Limits { cache_bytes: 1 << 24, rows: 1, queue: 6, ..Limits::default() };
    let observer = Arc::clone(&ends) as Arc<dyn Observer>;
    let engine = Handle::start_with(fixture_in("whitespaces", Dtype::F32), limits, observer).unwrap();
    let rules = CompletionRules { count: 3, end: CompletionEnd::Length, max_chars: 3 };
    let search = open(&engine, "abc de").complete(6, rules).unwrap();
    let refused = block_on(search.run()).unwrap_err();
    assert!(matches!(refused, Error::QueueFull { .. }), "{refused}");
    let accepted = ends.accepted.load(SeqCst);
    assert!((2..9).contains(&accepted), "{accepted}");
    eventually("those that were queued are cancelled", || ends.finished.load(SeqCst) == accepted);
}

/// Requests whose clients read nothing keep running, and take part in the width of a search.
#[test]
fn a_search_next_to_other_requests_finds_the_same() {
    let model = fixture_in("whitespaces", Dtype::F32);
    let text = "abc de ".repeat(12);
    let idle = engine(&model);
    let busy = engine(&model);
    let others: Vec<_> =
        (0..8).map(|_| busy.submit(Job::Generate(generate(&[1, 0, 2], 2000)), None).unwrap()).collect();
    for count in 1..=4 {
        for max_chars in 2..=4 {
            let rules = CompletionRules { count, end: CompletionEnd::Length, max_chars };
            compared(&open(&busy, &text), &open(&idle, &text), text.len(), rules);
        }
    }
    drop(others);
}

/// The steps of a search next to eight texts that are read for the first time: little more than one for each of its requests.
#[test]
fn a_search_does_not_wait_for_texts_that_are_read() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let limits = Limits { cache_bytes: 1 << 24, ..Limits::default() };
    let model = fixture_in("whitespaces", Dtype::F32);
    let (engine, worker) = Handle::with_task(model, limits, Arc::<RequestCounts>::default());
    let steps = AtomicUsize::new(0);
    let worker = worker.run(|| {
        steps.fetch_add(1, SeqCst);
        Duration::ZERO
    });
    let search = async {
        let rules = CompletionRules { count: 3, end: CompletionEnd::Length, max_chars: 3 };
        let mut session = open(&engine, &"abc de ".repeat(12));
        session.complete(84, rules).unwrap().run().await.unwrap();
        let text = "abcdef ".repeat(TEXT_BYTES / 7);
        let mut readers = Vec::new();
        for number in 0..8 {
            let opened = open(&engine, &text[number..]);
            let mut reader = opened.complete(opened.text().text().len(), rules).unwrap();
            let waiting = reader.submit_next().unwrap();
            readers.push((reader, waiting));
        }
        session.splice(1, &[Splice { range: 84..84, text: "a".into() }]).unwrap();
        let mut task = session.complete(85, rules).unwrap();
        let before = steps.load(SeqCst);
        let mut rounds = 0;
        loop {
            let waiting = task.submit_next().unwrap();
            if waiting.is_empty() {
                break;
            }
            task.take(received(waiting).await.unwrap()).unwrap();
            rounds += 1;
        }
        let took = steps.load(SeqCst) - before;
        assert!(rounds > 3 && took <= 2 * rounds + 1, "{took} steps for {rounds} rounds");
        for (mut reader, waiting) in readers {
            reader.take(received(waiting).await.unwrap()).unwrap();
            assert!(reader.finish().recomputed > TEXT_BYTES - 20);
        }
        let read = steps.load(SeqCst) - before;
        assert!(read > 2 * took, "the texts were read within {read} steps, the search took {took}");
    };
    runtime.block_on(async {
        tokio::select! {
            () = worker => panic!("the worker ended"),
            () = search => {}
        }
    });
}

#[test]
fn completions_have_the_form_of_their_constraint() {
    let (toy, engine) = started(Limits { cache_bytes: 1 << 20, ..Limits::default() });
    let session = open(&engine, "ab a");
    let rules = CompletionRules { count: 16, end: CompletionEnd::Word, max_chars: 9 };
    let found = |constraint: Constraint| {
        let pending = session.clone().into_completion(4, rules).constrained(Some(constraint));
        let items = block_on(pending.begin(without_limit).unwrap().run()).unwrap().items;
        let text = |symbols: &[u32]| toy.card().vocabulary.decode(symbols);
        items.iter().map(|item| (text(&item.symbols), item.logprob)).collect::<Vec<_>>()
    };
    let texts = ["abc", "ab", "c b a", "bb"];
    let mut sorted = found(Constraint::Choice(texts.map(str::to_owned).to_vec()));
    assert!(sorted.is_sorted_by(|better, worse| better.1 >= worse.1), "{sorted:?}");
    sorted.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(sorted.iter().map(|(text, _)| &**text).collect::<Vec<_>>(), ["ab", "abc", "bb", "c b a"]);
    let prompt = session.text().text().to_owned();
    for (text, logprob) in sorted {
        let symbols = toy.card().vocabulary.encode("text", &format!("{prompt}{text}"), 99).unwrap();
        let softmax = |end: usize| {
            let weights = logits_after(&symbols[..end]).map(|logit| f64::from(logit).exp());
            let total: f64 = weights.iter().sum();
            weights.map(|weight| weight / total)
        };
        let written: f64 = (4..symbols.len()).map(|at| softmax(at)[symbols[at] as usize]).product();
        // after "ab", only "c" stays in the form
        let ends = if text == "ab" { 1.0 - softmax(symbols.len())[3] } else { 1.0 };
        assert!(((written * ends).ln() - logprob).abs() < 1e-5, "{text}: {logprob}");
    }
    assert_eq!(found(Constraint::Regex("a{2}b".into())).len(), 1);
    let wrong = session.clone().into_completion(4, rules).constrained(Some(Constraint::Regex("(".into())));
    assert!(matches!(wrong.begin(without_limit), Err(Error::BadOption { field: "constraint.regex", .. })));
}
