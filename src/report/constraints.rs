//! Benchmark of constrained text: what a mask costs, how much faster a record is written of which most is forced, and how long a schema
//! takes to compile.
//!
//! All texts run through an engine, with as many requests at a time as the batch has rows. Free text, text under a mask that forces
//! nothing, and records of the same length take turns, so other load on the machine affects all of them.

use crate::report::machine::{Machine, MeasuredModel};
use crate::report::{check_length, quantiles, ratios};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_engine::constraint::{CompiledConstraint, Constraint, ConstraintCompiler, without_limit};
use weir_engine::options::{Details, FinishReason, Generate};
use weir_engine::{Event, Handle, Job, Limits};
use weir_kernels::error::{Error, Result};
use weir_measure::stats::Quantiles;
use weir_models::contract::{Card, Model};
use weir_models::text::{TextNormaliser, Vocabulary};
use weir_models::usage::Usage;

/// Maximum pairs of runs.
pub(crate) const MAX_PAIRS: usize = 10_000;

/// Maximum characters of a text.
pub(crate) const MAX_CHARS: usize = 1 << 16;

/// A mask that allows letters and spaces, and forces nothing.
const MASK: &str = "[a-z ]*";

/// The members of a record: their names and punctuation are forced, and [`FREE`] letters each are not.
const NAMES: [&str; 4] = ["city name", "its river", "rich trade", "old temple"];
const FREE: usize = 12;

/// Bytes of the schema that is compiled.
const SCHEMA_BYTES: usize = 10_000;

/// Parameters of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ConstraintPlan {
    /// Texts at a time.
    pub batch: usize,
    /// Characters of a text.
    pub chars: usize,
    /// Runs of each kind of text.
    pub pairs: usize,
}

/// Result of the benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ConstraintMeasurement {
    /// The model and the conditions of the measurement.
    #[serde(flatten)]
    pub measured: MeasuredModel,
    /// Texts at a time.
    pub batch: usize,
    /// Characters of a text.
    pub chars: usize,
    /// Runs of each kind of text.
    pub pairs: usize,
    /// Characters per second of free texts, all together.
    pub chars_per_second: Quantiles,
    /// Time of a text under a mask divided by the time of a free one.
    pub mask: Quantiles,
    /// True if the record is JSON of a schema; false if the vocabulary has no braces, and it is a regular expression.
    pub is_json: bool,
    /// Share of a record's characters that is forced.
    pub forced_share: f64,
    /// Speed of a record divided by the speed of a free text.
    pub record: Quantiles,
    /// Milliseconds to compile a schema of 10 kB for a vocabulary of bytes.
    pub compile_ms: Quantiles,
}

impl ConstraintPlan {
    /// Checks the plan against the limits of the model. The error names the command-line option and its limit.
    pub(crate) fn check(&self, card: &Card) -> Result<()> {
        check_length("--chars", self.chars, card.max_symbols.saturating_sub(PROMPT.len()))
    }
}

/// The text before each measured one.
const PROMPT: &str = "the history of the city ";

/// Runs a plan on a model. Fails if a request fails.
pub(crate) fn measure(
    model: &Arc<dyn Model>,
    plan: ConstraintPlan,
    machine: &Machine,
) -> Result<ConstraintMeasurement> {
    let limits = Limits { rows: plan.batch, calibration: Duration::ZERO, cache_bytes: 0, ..Limits::default() };
    let engine = Handle::start(Arc::clone(model), limits)?;
    let mask = engine.compile("", &Constraint::Regex(MASK.into()), without_limit)?;
    let json = engine.compile("", &Constraint::JsonSchema(record_schema(plan.chars)), without_limit);
    let is_json = json.is_ok();
    let record = json.or_else(|_| engine.compile("", &Constraint::Regex(record_regex(plan.chars)), without_limit))?;
    let mut free_speeds = Vec::with_capacity(plan.pairs);
    let mut mask_times = Vec::with_capacity(plan.pairs);
    let mut record_speeds = Vec::with_capacity(plan.pairs);
    let mut compile_ms = Vec::with_capacity(plan.pairs);
    let mut forced_share = 0.0;
    // the first round warms up
    for round in 0..=plan.pairs {
        let free = write(&engine, plan, None, round)?;
        let masked = write(&engine, plan, Some(&mask), round)?;
        let recorded = write(&engine, plan, Some(&record), round)?;
        let compiled = compile_time()?;
        if round > 0 {
            free_speeds.push(free.speed());
            mask_times.push((free.speed(), masked.speed()));
            record_speeds.push((recorded.speed(), free.speed()));
            compile_ms.push(compiled.as_secs_f64() * 1e3);
            forced_share = recorded.forced as f64 / recorded.chars.max(1) as f64;
        }
    }
    Ok(ConstraintMeasurement {
        measured: MeasuredModel::new(model.card(), machine),
        batch: plan.batch,
        chars: plan.chars,
        pairs: plan.pairs,
        chars_per_second: quantiles(free_speeds)?,
        mask: ratios(mask_times.into_iter())?,
        is_json,
        forced_share,
        record: ratios(record_speeds.into_iter())?,
        compile_ms: quantiles(compile_ms)?,
    })
}

/// The texts of one run.
struct Written {
    chars: usize,
    forced: usize,
    took: Duration,
}

impl Written {
    /// Characters per second.
    fn speed(&self) -> f64 {
        self.chars as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

/// Writes texts, all at a time.
fn write(
    engine: &Handle,
    plan: ConstraintPlan,
    constraint: Option<&Arc<CompiledConstraint>>,
    round: usize,
) -> Result<Written> {
    let began = Instant::now();
    let mut running = Vec::with_capacity(plan.batch);
    for row in 0..plan.batch {
        let mut request = Generate::from_text(PROMPT, engine.card())?;
        request.sampling.seed = (round * plan.batch + row) as u64;
        request.stopping.max_chars = plan.chars;
        request.stopping.ignore_end = constraint.is_none();
        request.stopping.end_when_complete = Some(false);
        request.details = Details::default();
        request.constraint = constraint.cloned();
        running.push(engine.submit(Job::Generate(request), None)?);
    }
    let mut written = Written { chars: 0, forced: 0, took: Duration::ZERO };
    for mut events in running {
        while let Some(event) = events.blocking_recv() {
            if let Event::Finished { usage: Usage { generated_chars, forced_chars, .. }, reason, .. } = event? {
                if reason == FinishReason::EndOfText && generated_chars < plan.chars / 2 {
                    return Err(Error::Internal("a measured text ended early".into()));
                }
                written.chars += generated_chars;
                written.forced += forced_chars;
            }
        }
    }
    written.took = began.elapsed();
    Ok(written)
}

/// Returns the number of records' members that fill a text.
fn members(chars: usize, punctuation: usize) -> usize {
    (chars / (NAMES[0].len() + punctuation + FREE)).max(1)
}

fn name(member: usize) -> String {
    format!("{} {}", NAMES[member % NAMES.len()], char::from(b'a' + (member / NAMES.len() % 26) as u8))
}

/// Returns the schema of a record of about so many characters.
fn record_schema(chars: usize) -> String {
    let names: Vec<String> = (0..members(chars, 10)).map(name).collect();
    let member = |name: &String| {
        let pattern = format!("^[a-z]{{{FREE}}}$");
        (name.clone(), serde_json::json!({ "type": "string", "pattern": pattern }))
    };
    let properties: serde_json::Map<_, _> = names.iter().map(member).collect();
    serde_json::json!({ "type": "object", "properties": properties, "required": names, "additionalProperties": false })
        .to_string()
}

/// Returns the expression of a record of letters and spaces.
fn record_regex(chars: usize) -> String {
    let member = |member| format!("the {} is [a-z]{{{FREE}}} ", name(member));
    (0..members(chars, 10)).map(member).collect()
}

/// Returns the time to compile a schema for a vocabulary of bytes, whose tables exist.
fn compile_time() -> Result<Duration> {
    let compiler = ConstraintCompiler::new(Arc::new(Vocabulary::byte_level(TextNormaliser::None)));
    compiler.compile(&Constraint::JsonObject)?;
    let mut properties = serde_json::Map::new();
    let mut bytes = 0;
    for kind in ["integer", "string", "boolean"].iter().cycle() {
        let field = format!("field_{}", properties.len());
        let schema = serde_json::json!({ "type": kind, "description": "a member of the record" });
        bytes += field.len() + schema.to_string().len() + 4;
        if bytes > SCHEMA_BYTES {
            break;
        }
        properties.insert(field, schema);
    }
    let schema = serde_json::json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let schema = Constraint::JsonSchema(schema.to_string());
    let began = Instant::now();
    compiler.compile(&schema)?;
    Ok(began.elapsed())
}
