//! Explores interleavings of threads. A failure prints the schedule, which `shuttle::replay` runs again.

mod pages;
mod pool;
mod queue;
mod wake;

/// Interleavings of each test and scheduler, unless `WEIR_INTERLEAVINGS` names another number.
#[cfg(not(miri))]
const DEFAULT: usize = 2_000;
/// Changes of priority with which `PCT` looks for rare bugs.
#[cfg(not(miri))]
const DEPTH: usize = 3;

/// Runs a test a few times with real threads, which Miri switches at random places.
#[cfg(miri)]
fn explore(test: impl Fn() + Send + Sync + 'static) {
    (0..10).for_each(|_| test());
}

/// Runs a test under many interleavings: random ones, and those in which one thread overtakes the others at a few points.
#[cfg(not(miri))]
fn explore(test: impl Fn() + Send + Sync + 'static) {
    let count = std::env::var("WEIR_INTERLEAVINGS").map_or(DEFAULT, |count| count.parse().expect("a number"));
    let test = std::sync::Arc::new(test);
    let again = std::sync::Arc::clone(&test);
    shuttle::check_random(move || test(), count);
    shuttle::check_pct(move || again(), count, DEPTH);
}
