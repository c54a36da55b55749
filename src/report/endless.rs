//! Benchmark of a long stream: one sequence is fed the repeated sample symbol by symbol.
//!
//! Each part of the stream reports the time per symbol and the memory that the sequence holds. If attention windows limit
//! that memory, the last part equals the first.

use crate::report::{
    check_length, check_range,
    machine::{Machine, MeasuredModel},
    quantiles,
    sample::Sample,
};
use serde::Serialize;
use std::time::Instant;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};
use weir_kernels::error::{Error, Result};
use weir_models::contract::{BoundaryOptions, Card, Model, SequenceRow, Want, advance};

pub(crate) const MAX_PARTS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndlessPlan {
    pub symbols: usize,
    /// Number of equally long parts that are reported.
    pub parts: usize,
}

impl EndlessPlan {
    /// Checks the plan against the limits of the model. The error names the command-line option and its limit.
    pub(crate) fn check(&self, card: &Card) -> Result<()> {
        check_length("--symbols", self.symbols, card.max_symbols)?;
        check_range("--parts", self.parts, 2, MAX_PARTS.min(self.symbols))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct StreamPart {
    /// Symbols of the stream at the end of the part.
    pub symbols: usize,
    pub step_ns_p50: f64,
    pub step_ns_p10: f64,
    pub step_ns_p90: f64,
    /// Bytes of the pages that the sequence holds at the end of the part.
    pub page_bytes: usize,
    /// Bytes that the sequence holds in addition to its pages.
    pub own_bytes: usize,
    /// Resident memory of the process at the end of the part; `None` if the system does not report it.
    pub resident_bytes: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct EndlessMeasurement {
    #[serde(flatten)]
    pub measured: MeasuredModel,
    pub symbols: usize,
    /// Measured symbols per closed segment; `None` if no segment was closed.
    pub shortening_factor: Option<f64>,
    pub parts: Vec<StreamPart>,
    /// Median time per symbol of the last part divided by that of the first.
    pub time_ratio: f64,
    /// Memory of the sequence (pages and own bytes) after the last part divided by that after the first.
    pub memory_ratio: f64,
    pub foreign_letters: usize,
}

/// Measures a plan. Fails if the plan exceeds a limit of the model, or if a step fails.
pub(crate) fn measure(model: &dyn Model, plan: EndlessPlan, machine: &Machine) -> Result<EndlessMeasurement> {
    let card = model.card();
    plan.check(card)?;
    let sample = Sample::new(&card.vocabulary);
    let mut row = SequenceRow::new(model.begin(BoundaryOptions::default())?);
    let mut scratch = model.scratch();
    let mut parts = Vec::new();
    let mut system = System::new();
    for part in 0..plan.parts {
        let end = plan.symbols * (part + 1) / plan.parts;
        let mut times = Vec::with_capacity(end - row.state.len());
        for position in row.state.len()..end {
            row.set(&[sample.symbol(position)], Want::Last);
            let start = Instant::now();
            advance(model, std::slice::from_mut(&mut row), &[0], &mut scratch)?;
            times.push(start.elapsed().as_nanos() as f64);
        }
        let times = quantiles(times)?;
        parts.push(StreamPart {
            symbols: end,
            step_ns_p50: times.median,
            step_ns_p10: times.p10,
            step_ns_p90: times.p90,
            page_bytes: row.state.bytes(),
            own_bytes: row.state.own_bytes(),
            resident_bytes: resident_bytes(&mut system),
        });
    }
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return Err(Error::Internal("nothing was timed".into()));
    };
    let held = |part: &StreamPart| (part.page_bytes + part.own_bytes) as f64;
    let time_ratio = last.step_ns_p50 / first.step_ns_p50;
    let memory_ratio = held(last) / held(first);
    let segments = row.state.segments();
    Ok(EndlessMeasurement {
        measured: MeasuredModel::new(card, machine),
        symbols: plan.symbols,
        shortening_factor: (segments > 0).then(|| plan.symbols as f64 / segments as f64),
        parts,
        time_ratio,
        memory_ratio,
        foreign_letters: sample.foreign,
    })
}

fn resident_bytes(system: &mut System) -> Option<usize> {
    let own = sysinfo::get_current_pid().ok()?;
    let what = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, what);
    usize::try_from(system.process(own)?.memory()).ok()
}
