//! A long stream, timed: one sequence is fed the sample symbol by symbol, round and round, and each part of the stream tells how
//! long its symbols took and what the sequence held by then. Where windows bound what is kept, the last part is as the first.

use super::{bounded, head::Head, machine::Machine, quantiles::Quantiles, sample::Sample};
use crate::{
    decode::contract::{BoundaryOptions, Card, Model, SequenceRow, Want, advance},
    error::{Error, Result},
};
use serde::Serialize;
use std::time::Instant;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

/// The most parts.
pub const MAX_PARTS: usize = 1000;

/// What is to be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Symbols of the stream.
    pub symbols: usize,
    /// Parts of it that are told of, equally long.
    pub parts: usize,
}

impl Plan {
    /// Whether the model can do it.
    ///
    /// # Errors
    /// [`Error::BadOption`] or [`Error::TooLong`] with the command line's option and its bound.
    pub fn check(&self, card: &Card) -> Result<()> {
        let (length, limit) = (self.symbols, card.max_symbols);
        if length > limit {
            return Err(Error::TooLong { field: "--symbols", length, limit, unit: "characters", why: None });
        }
        bounded("--parts", self.parts, 2, MAX_PARTS.min(self.symbols))
    }
}

/// One part of the stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// Symbols of the stream by its end.
    pub symbols: usize,
    /// The median symbol.
    pub step_ns_p50: f64,
    /// A fast one.
    pub step_ns_p10: f64,
    /// A slow one.
    pub step_ns_p90: f64,
    /// Bytes of the pages that the sequence holds at its end.
    pub page_bytes: usize,
    /// Bytes that it occupies beside them.
    pub own_bytes: usize,
    /// Bytes of memory that the process occupies at its end; none where the system does not tell.
    pub resident_bytes: Option<usize>,
}

/// A measurement of a stream, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The model, and what it runs on.
    #[serde(flatten)]
    pub head: Head,
    /// Symbols of the stream.
    pub symbols: usize,
    /// Symbols for each segment closed, as met; none if none was closed.
    pub shortening_factor: Option<f64>,
    /// Its parts, in order.
    pub parts: Vec<Part>,
    /// The last part's median symbol, in those of the first.
    pub time_ratio: f64,
    /// What the sequence holds in the end, pages and all, in that of the first part.
    pub memory_ratio: f64,
    /// Letters of the sample that the vocabulary does not have.
    pub foreign_letters: usize,
}

/// Times a plan.
///
/// # Errors
/// A plan that the model cannot do, and what its steps say.
pub fn measure(model: &dyn Model, plan: Plan, machine: &Machine) -> Result<Entry> {
    let card = model.card();
    plan.check(card)?;
    let sample = Sample::new(&card.vocabulary);
    let mut row = SequenceRow::new(model.begin(BoundaryOptions::default())?);
    let (mut scratch, mut parts, mut system) = (model.scratch(), Vec::new(), System::new());
    for part in 0..plan.parts {
        let end = plan.symbols * (part + 1) / plan.parts;
        let mut times = Vec::with_capacity(end - row.state.len());
        for place in row.state.len()..end {
            row.set(&[sample.at(place)], Want::Last);
            let begun = Instant::now();
            advance(model, std::slice::from_mut(&mut row), &[0], &mut scratch)?;
            times.push(begun.elapsed().as_nanos() as f64);
        }
        let times = Quantiles::of(times).ok_or_else(nothing)?;
        parts.push(Part {
            symbols: end,
            step_ns_p50: times.p50,
            step_ns_p10: times.p10,
            step_ns_p90: times.p90,
            page_bytes: row.state.bytes(),
            own_bytes: row.state.own_bytes(),
            resident_bytes: resident_bytes(&mut system),
        });
    }
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Err(nothing()) };
    let held = |part: &Part| (part.page_bytes + part.own_bytes) as f64;
    let (time_ratio, memory_ratio) = (last.step_ns_p50 / first.step_ns_p50, held(last) / held(first));
    let segments = row.state.segments();
    Ok(Entry {
        head: Head::new(card, machine),
        symbols: plan.symbols,
        shortening_factor: (segments > 0).then(|| plan.symbols as f64 / segments as f64),
        parts,
        time_ratio,
        memory_ratio,
        foreign_letters: sample.foreign(),
    })
}

fn nothing() -> Error {
    Error::Internal("no symbol was timed".into())
}

fn resident_bytes(system: &mut System) -> Option<usize> {
    let own = sysinfo::get_current_pid().ok()?;
    let what = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, what);
    usize::try_from(system.process(own)?.memory()).ok()
}
