//! Searches of completions next to other requests, and in a full queue.

use super::{TEXT_BYTES, engine, open};
use crate::{engine::jobs::generate, support::fixture_in};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use weir::{
    decode::{
        completion::{CompletionEnd, CompletionRules},
        edited_text::Splice,
    },
    engine::{
        Handle, Job, Limits,
        observer::{EngineEvent, Observer},
    },
    error::Error,
    kernels::Dtype,
};

#[derive(Default)]
struct Ends {
    accepted: AtomicUsize,
    finished: AtomicUsize,
}

impl Observer for Ends {
    fn record(&self, event: EngineEvent<'_>) {
        match event {
            EngineEvent::Accepted => _ = self.accepted.fetch_add(1, SeqCst),
            EngineEvent::Finished { .. } => _ = self.finished.fetch_add(1, SeqCst),
            _ => {}
        }
    }
}

#[test]
fn a_step_that_the_queue_cannot_hold_is_accounted_for() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ends = Arc::new(Ends::default());
    let limits = Limits { cache_bytes: 1 << 24, rows: 1, queue: 6, ..Limits::default() };
    let observer = Arc::clone(&ends) as Arc<dyn Observer>;
    let engine = Handle::start_with(fixture_in("whitespaces", Dtype::F32), limits, observer).unwrap();
    let rules = CompletionRules { count: 3, end: CompletionEnd::Length, max_chars: 3 };
    let search = open(&engine, "abc de").complete(6, rules).unwrap();
    let refused = runtime.block_on(search.run()).unwrap_err();
    assert!(matches!(refused, Error::QueueFull { .. }), "{refused}");
    let accepted = ends.accepted.load(SeqCst);
    assert!((2..9).contains(&accepted), "{accepted}");
    // those that were queued are cancelled
    for _ in 0..1_000 {
        if ends.finished.load(SeqCst) == accepted {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} of {accepted} ended", ends.finished.load(SeqCst));
}

/// Requests whose clients read nothing stay, and take part in the width of a search.
#[test]
fn a_search_next_to_other_requests_finds_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let model = fixture_in("whitespaces", Dtype::F32);
    let text = "abc de ".repeat(12);
    let idle = engine(&model);
    let busy = engine(&model);
    let others: Vec<_> =
        (0..8).map(|_| busy.submit(Job::Generate(generate(&[1, 0, 2], 2000)), None).unwrap()).collect();
    for count in 1..=4 {
        for max_chars in 2..=4 {
            let rules = CompletionRules { count, end: CompletionEnd::Length, max_chars };
            let search = |engine: &Handle| {
                let task = open(engine, &text).complete(text.len(), rules).unwrap();
                runtime.block_on(task.run()).unwrap()
            };
            let alone = search(&idle);
            let shared = search(&busy);
            assert_eq!((&shared.items, shared.expansions), (&alone.items, alone.expansions), "{rules:?}");
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
    let (engine, worker) = Handle::with_task(model, limits, Arc::<Ends>::default());
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
            task.take(waiting).await.unwrap();
            rounds += 1;
        }
        let took = steps.load(SeqCst) - before;
        assert!(rounds > 3 && took <= 2 * rounds + 1, "{took} steps for {rounds} rounds");
        for (mut reader, waiting) in readers {
            reader.take(waiting).await.unwrap();
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
