//! Deterministic simulation of the whole server: real HTTP/2 and HTTP/1.1 connections, services, engine and scheduler, in virtual
//! time.
//!
//! A seed determines a small scenario: limits, tenants, clients with their calls, and what goes wrong. One thread runs everything
//! in it on a paused clock, so a seed always gives the same events. At the end, every call has ended once, with a complete
//! response or an error that the plan explains, and the server and the engine hold nothing.
//!
//! ```sh
//! cargo test --test simulation                               # a few hundred seeds
//! WEIR_LONG_RUNS=1 cargo test --test simulation              # 10,000 seeds, as in CI
//! WEIR_SEEDS=1000000 cargo test --test simulation scenarios     # as many as you like
//! WEIR_SEED=1234 cargo test --test simulation replay -- --nocapture   # one seed, with its events
//! ```

#![allow(clippy::disallowed_methods, reason = "the environment selects the seeds")]
#![allow(clippy::print_stdout, reason = "a replay prints its events")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed assumption must fail the test")]

mod calls;
#[path = "../weir/document_model.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod document_model;
mod network;
mod plan;
mod scenario;
#[path = "../weir/toy_model.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod toy_model;

use crate::document_model::DocumentModel;
use crate::network::{Contents, LinkQuality, LinkState, Log, MAX_LATENCY};
use crate::plan::{CallKind, CallPlan, ClientPlan, KeySet, Random};
use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;
use std::{env, thread};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use weir::{models::contract::Model, server::Accepted};

/// Seeds of the default run, and of one with `WEIR_LONG_RUNS`.
const SEEDS: u64 = 400;

const LONG_RUN_SEEDS: u64 = 10_000;

/// Seeds that run twice.
const REPEATED: u64 = 100;

/// Failed seeds after which a run stops.
const MAX_FAILURES: usize = 5;

/// Events that must occur in every run, or the scenarios are too peaceful to show anything.
const EXPECTED: [&str; 24] = [
    "complete",
    "completion over HTTP",
    "text that came back",
    "inference",
    "summary",
    "summary of a cached document",
    "document that was not kept",
    "cancelled",
    "disconnected",
    "signal",
    "second signal",
    "reload",
    "call with a removed key",
    "preemption",
    "refused memory",
    "full request memory",
    "call during a flood",
    "QUEUE_FULL",
    "TOO_MANY",
    "NEVER_FITS",
    "DEADLINE",
    "STALLED",
    "DRAINING",
    "INTERNAL",
];

#[test]
fn scenarios() {
    hide_wanted_panics();
    let is_long = env::var_os("WEIR_LONG_RUNS").is_some_and(|value| value == "1");
    let default = if is_long { LONG_RUN_SEEDS } else { SEEDS };
    let seeds = number("WEIR_SEEDS").unwrap_or(default);
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let totals = Mutex::new(BTreeMap::<String, usize>::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while failures.lock().unwrap().len() < MAX_FAILURES {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let scenario = run(seed);
                    if !scenario.violations.is_empty() {
                        failures.lock().unwrap().push((seed, scenario.violations));
                    }
                    let mut totals = totals.lock().unwrap();
                    scenario.counts.into_iter().for_each(|(kind, count)| *totals.entry(kind).or_default() += count);
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let totals = totals.into_inner().unwrap();
    println!("{seeds} seeds: {totals:?}");
    let report = |(seed, violations): &(u64, Vec<String>)| {
        format!(
            "seed {seed}: {}\n  replay it: WEIR_SEED={seed} cargo test --test simulation replay -- --nocapture",
            violations.join("\n  ")
        )
    };
    assert!(failures.is_empty(), "{}", failures.iter().map(report).collect::<Vec<_>>().join("\n"));
    if seeds >= SEEDS {
        let missing: Vec<_> = EXPECTED.iter().filter(|kind| !totals.contains_key(**kind)).collect();
        assert!(missing.is_empty(), "these never happened: {missing:?}");
    }
}

/// Prints the events of the seed that `WEIR_SEED` names.
#[test]
fn replay() {
    hide_wanted_panics();
    let Some(seed) = number("WEIR_SEED") else { return };
    let scenario = run(seed);
    scenario.lines.iter().for_each(|line| println!("{line}"));
    println!("hash {:016x}", scenario.hash());
    assert!(scenario.violations.is_empty(), "{}", scenario.violations.join("\n"));
}

#[test]
fn equal_seeds_give_equal_events() {
    hide_wanted_panics();
    for seed in 0..number("WEIR_SEEDS").unwrap_or(REPEATED) {
        let first = run(seed);
        // another thread, whose hash maps have other keys
        let second = thread::spawn(move || run(seed)).join().unwrap();
        let difference = first.lines.iter().zip(&second.lines).find(|(first, second)| first != second);
        assert_eq!(difference, None, "seed {seed}");
        assert_eq!(first.hash(), second.hash(), "seed {seed}");
    }
}

/// Runs a scenario. A panic of the simulation itself is a violation.
fn run(seed: u64) -> Contents {
    catch_unwind(AssertUnwindSafe(|| crate::scenario::run(seed))).unwrap_or_else(|panic| {
        let why = message(&*panic).unwrap_or("unknown").to_owned();
        Contents { violations: vec![format!("panic: {why}")], ..Contents::default() }
    })
}

/// Returns the number in an environment variable, if it is set.
fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn message(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

/// Keeps panics that a plan wants out of the output.
fn hide_wanted_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !message(info.payload()).is_some_and(|message| message.starts_with(crate::toy_model::WANTED_PANIC)) {
                default(info);
            }
        }));
    });
}
