//! `weir bench`: measures the speed of models on this machine, and compares it with the machine's limits. The
//! modules of `report` describe the measurements.

use crate::cli::document::json_lines;
use crate::cli::model::{self, CheckpointArgs, ComputeArgs, checkpoint, count, unreadable};
use crate::cli::output::{self, Progress};
use crate::report::constraints::{self, ConstraintMeasurement, ConstraintPlan};
use crate::report::decode::{self, DecodeComparison, DecodeMeasurement, DecodePlan};
use crate::report::documents::{
    self, BenchDocument, DocumentBenchPlan, DocumentComparison, DocumentCost, DocumentResult, MAX_PAIRS,
};
use crate::report::kernels::{self, KernelMeasurement, KernelPlan};
use crate::report::machine::{Machine, MeasuredModel, free_bytes};
use crate::report::prefill::{self, PrefillMeasurement, PrefillPlan};
use crate::report::summaries::{self, SummaryBenchPlan, SummaryBenchResult, SummaryComparison};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_kernels::error::{Error, Result, printable};
use weir_kernels::{Compute, Dtype, Isa, ThreadPool};
use weir_measure::{format::table, stats::Quantiles};
use weir_models::checkpoint::CheckpointSource;
use weir_models::contract::{BOUNDARY_WAIT, Card, MAX_BOUNDARY_WAIT, Model, unpooled_name};
use weir_models::load::{DeviceChoice, MAX_SYMBOLS, Settings, load_as};

/// Measures speed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    /// Decoding: each step feeds one symbol of bundled English text to every row and computes its logits.
    Decode(DecodeArgs),
    /// Prefill: feeds a fresh sequence many symbols per step.
    Prefill(PrefillArgs),
    /// Decoding with two models in alternating runs: speed of A ÷ speed of B.
    Compare(CompareArgs),
    /// Summaries by two models in alternating runs: encoding time per layer, time per token, total time, and the share of the
    /// encoding that overlaps with the upload.
    Summarize(SummarizeArgs),
    /// Given documents by two models in alternating runs: share of each document that is kept, encoding time, time per token, and bytes
    /// of cross-attention.
    Documents(DocumentsArgs),
    /// Texts that must have a form: the cost of a mask, the speed of a record that is mostly forced, and the time to compile a schema.
    Constraints(ConstraintsArgs),
    /// Single kernels, without a model.
    Kernels(KernelsArgs),
}

/// Runs the command. Fails if a checkpoint or an option is invalid, or if an output file cannot be written.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        BenchCommand::Decode(args) => run_decode(&args),
        BenchCommand::Prefill(args) => run_prefill(&args),
        BenchCommand::Compare(args) => run_compare(&args),
        BenchCommand::Summarize(args) => run_summarize(&args),
        BenchCommand::Documents(args) => run_documents(&args),
        BenchCommand::Constraints(args) => run_constraints(&args),
        BenchCommand::Kernels(args) => run_kernels(&args),
    }
}

/// Compute and output flags.
#[derive(Debug, clap::Args)]
struct BenchArgs {
    #[command(flatten)]
    compute: BenchCompute,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl BenchArgs {
    fn print<T: Serialize>(&self, entries: &[T], table: impl Fn(&[T]) -> String) -> Result<()> {
        if !self.json {
            return output::write(&table(entries));
        }
        output::json(&serde_json::to_value(entries).map_err(|error| Error::Internal(error.to_string()))?)
    }
}

/// Compute settings. Every dtype is measured with every number of threads, one after the other.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
struct BenchCompute {
    /// Number formats of weights, keys and values: f32, bf16, int8, or int4 (weights in int4, keys and values in int8). Several are
    /// measured one after the other.
    #[arg(long, value_name = "TYPE", value_parser = model::dtype(), value_delimiter = ',', default_value = "f32",
        env = "WEIR_DTYPE")]
    dtype: Vec<Dtype>,
    /// Numbers of threads. Several are measured one after the other. Default: all cores.
    #[arg(long, value_name = "N", value_delimiter = ',', env = "WEIR_THREADS",
        value_parser = model::whole::<u16>(1..=1024))]
    threads: Vec<u16>,
    /// Maximum symbols in one sequence. Default: four training windows, at least 8192; 2^24 if attention windows bound the
    /// memory of a sequence.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SYMBOLS", value_parser = model::whole::<u32>(1..=1 << 24))]
    max_symbols: Option<u32>,
    /// Device of Hugging Face models: cpu, cuda, cuda:N or metal. Other models run on the CPU.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu, env = "WEIR_DEVICE")]
    device: DeviceChoice,
    /// Instruction set of the kernels: amx (AVX-512, and tiles for int8), avx512 (F, BW, VL and VNNI), avx2 (with FMA) or portable.
    /// Default: the widest that the processor and the system permit.
    #[arg(long, value_name = "NAME", value_parser = model::isa)]
    isa: Option<Isa>,
}

impl BenchCompute {
    /// Numbers of threads to measure with. `None` means all cores.
    fn threads(&self) -> Vec<Option<u16>> {
        if self.threads.is_empty() { vec![None] } else { self.threads.iter().copied().map(Some).collect() }
    }

    fn isa(&self) -> Isa {
        self.isa.unwrap_or_else(Isa::detect)
    }

    /// Every combination of dtype and threads, in the order of measurement.
    fn setups(&self) -> Vec<Setup> {
        let mut setups = Vec::new();
        for &dtype in &self.dtype {
            for threads in self.threads() {
                let settings =
                    ComputeArgs { dtype, threads, max_symbols: self.max_symbols, device: self.device }.settings();
                setups.push(Setup(Settings { isa: self.isa(), ..settings }));
            }
        }
        setups
    }
}

/// One dtype and number of threads. The threads are not started yet.
struct Setup(Settings);

impl Setup {
    /// Loads models that share one thread pool, and describes the machine that they run on.
    fn load<const N: usize>(self, sources: [&CheckpointSource; N]) -> Result<([Arc<dyn Model>; N], Machine)> {
        let settings = self.0.with_threads();
        let models = sources.into_iter().map(|source| load_as(source, &source.name(), &settings));
        let models = models.collect::<Result<Vec<_>>>()?.try_into();
        Ok((models.map_err(|_| Error::Internal("a model is missing after loading".into()))?, machine(&settings)?))
    }

    /// Loads a model and, on the same threads, the same model with its pooling turned off. Fails if the model cannot run without its
    /// pooling.
    fn load_with_unpooled(self, source: &CheckpointSource) -> Result<([Arc<dyn Model>; 2], Machine)> {
        let settings = self.0.with_threads();
        let name = source.name();
        let pooled = load_as(source, &name, &settings)?;
        let unpooled = load_as(source, &unpooled_name(&name), &Settings { unpooled: true, ..settings.clone() })?;
        Ok(([pooled, unpooled], machine(&settings)?))
    }
}

fn machine(settings: &Settings) -> Result<Machine> {
    match settings.clone() {
        Settings { isa, pool: Some(pool), .. } => Ok(Machine { compute: Compute { isa, pool } }),
        _ => Err(Error::Internal("the thread pool was not started".into())),
    }
}

impl BenchCompute {
    /// Loads a model with every setup, and returns all that `measure` returns.
    fn with_each_setup<T>(
        &self,
        checkpoint: &CheckpointArgs,
        measure: impl Fn(&Arc<dyn Model>, &Machine) -> Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        let source = checkpoint.source()?;
        let mut entries = Vec::new();
        for setup in self.setups() {
            let ([model], machine) = setup.load([&source])?;
            entries.extend(measure(&model, &machine)?);
        }
        Ok(entries)
    }

    /// Measures plans on one model, with every setup. All plans are checked before the first one is measured.
    fn measure<P: Copy, T>(
        &self,
        checkpoint: &CheckpointArgs,
        plans: &[P],
        check: impl Fn(&P, &Card) -> Result<()>,
        measure: impl Fn(&dyn Model, P, &Machine) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.with_each_setup(checkpoint, |model, machine| {
            plans.iter().try_for_each(|plan| check(plan, model.card()))?;
            measure_each(plans.to_vec(), |plan| measure(&**model, plan, machine))
        })
    }

    /// Measures plans on two models in turns, with every setup. `compare` reports the number of pairs done, out of `pairs`.
    fn compare<P: Copy, T>(
        &self,
        [a, b]: [CheckpointSource; 2],
        plans: &[P],
        pairs: usize,
        check: impl Fn(&P, &dyn Model) -> Result<()>,
        compare: impl Fn([&dyn Model; 2], P, &Machine, &mut dyn FnMut(usize)) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut entries = Vec::new();
        for setup in self.setups() {
            let ([a, b], machine) = setup.load([&a, &b])?;
            for model in [&*a, &*b] {
                plans.iter().try_for_each(|plan| check(plan, model))?;
            }
            let mut progress = Progress::measurements();
            let total = (plans.len() * pairs) as u64;
            for (index, &plan) in plans.iter().enumerate() {
                let mut report = |done: usize| progress.update((index * pairs + done) as u64, total);
                report(0);
                entries.push(compare([&*a, &*b], plan, &machine, &mut report)?);
            }
        }
        Ok(entries)
    }
}

/// Runs one measurement after the other. The progress bar is updated between measurements, never during one.
fn measure_each<P, T>(plans: Vec<P>, mut measure: impl FnMut(P) -> Result<T>) -> Result<Vec<T>> {
    let mut progress = Progress::measurements();
    let total = plans.len() as u64;
    progress.update(0, total);
    let mut entries = Vec::with_capacity(plans.len());
    for plan in plans {
        entries.push(measure(plan)?);
        progress.update(entries.len() as u64, total);
    }
    Ok(entries)
}

#[derive(Debug, clap::Args)]
struct DecodeArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    plans: PlanArgs,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Two models to compare, each a checkpoint folder or the name of a model in the user's models folder.
#[derive(Debug, clap::Args)]
struct ComparedModels {
    /// Model A, whose speed is reported relative to model B: checkpoint folder, or name of a model in the user's models folder.
    #[arg(value_name = "DIR_A")]
    a: PathBuf,
    /// Model B, for example the same shape without pooling.
    #[arg(value_name = "DIR_B")]
    b: PathBuf,
}

impl ComparedModels {
    fn sources(&self) -> Result<[CheckpointSource; 2]> {
        Ok([checkpoint("DIR_A", Some(&self.a))?, checkpoint("DIR_B", Some(&self.b))?])
    }
}

#[derive(Debug, clap::Args)]
struct CompareArgs {
    #[command(flatten)]
    models: ComparedModels,
    #[command(flatten)]
    plans: PlanArgs,
    /// Runs of each model, in the order A B A B …. Each run times all steps.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count(1..=decode::MAX_PAIRS))]
    pairs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

#[derive(Debug, clap::Args)]
struct PrefillArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Symbols of the prompt. Several lengths are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512", value_parser = count(1..=MAX_SYMBOLS))]
    symbols: Vec<usize>,
    /// Symbols per step.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count(1..=MAX_SYMBOLS))]
    chunk: usize,
    /// Timed runs, after one warm-up run.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = count(1..=prefill::MAX_RUNS))]
    runs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

#[derive(Debug, clap::Args)]
struct SummarizeArgs {
    #[command(flatten)]
    models: ComparedModels,
    /// Documents per batch. Several batch sizes are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8",
        value_parser = count(1..=summaries::MAX))]
    batch: Vec<usize>,
    /// Tokens per document.
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = count(2..=1 << 24))]
    source: usize,
    /// Tokens per summary.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count(2..=1 << 24))]
    tokens: usize,
    /// Timed runs of each model, in the order A B A B …, after one warm-up run of each.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count(1..=summaries::MAX))]
    pairs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Decoding plans: every batch size with every context length, every boundary wait and every threshold.
#[derive(Debug, clap::Args)]
struct PlanArgs {
    /// Rows per step. Several batch sizes are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1",
        value_parser = count(1..=decode::MAX_BATCH))]
    batch: Vec<usize>,
    /// Symbols in each row before the first timed step. Several lengths are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512", value_parser = count(0..=MAX_SYMBOLS))]
    context: Vec<usize>,
    /// Timed steps, after a few warm-up steps.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = count(1..=decode::MAX_STEPS))]
    steps: usize,
    /// Maximum steps that a row waits after its segment closed, to share the segment step with other rows. Several values are
    /// measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [BOUNDARY_WAIT],
        value_parser = count(0..=MAX_BOUNDARY_WAIT))]
    boundary_wait: Vec<usize>,
    /// Thresholds, in nats, of the entropies that end segments, in a model that places boundaries by entropies. Several are measured
    /// one after the other; `bench decode` also prints the bits per byte of 2,048 bytes for each. Default: the model's threshold.
    #[arg(
        long,
        visible_alias = "patching-threshold",
        value_name = "NATS",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    boundary_threshold: Vec<f32>,
}

impl PlanArgs {
    /// Lists the plans in the order of measurement.
    fn plans(&self) -> Vec<DecodePlan> {
        let mut plans = Vec::new();
        for &context in &self.context {
            for &batch in &self.batch {
                for &boundary_wait in &self.boundary_wait {
                    let plan = DecodePlan { batch, context, steps: self.steps, boundary_wait, threshold: None };
                    if self.boundary_threshold.is_empty() {
                        plans.push(plan);
                    }
                    let thresholds = self.boundary_threshold.iter().copied().map(Some);
                    plans.extend(thresholds.map(|threshold| DecodePlan { threshold, ..plan }));
                }
            }
        }
        plans
    }
}

fn run_decode(args: &DecodeArgs) -> Result<()> {
    let plans = args.plans.plans();
    let compute = &args.bench.compute;
    let entries = compute.with_each_setup(&args.checkpoint, |model, machine| {
        plans.iter().try_for_each(|plan| plan.check(model.card()))?;
        let mut entries = measure_each(plans.clone(), |plan| decode::measure(&**model, plan, machine))?;
        decode::score_thresholds(&**model, &mut entries)?;
        Ok(entries)
    })?;
    args.bench.print(&entries, decode_table)
}

fn run_prefill(args: &PrefillArgs) -> Result<()> {
    let PrefillArgs { chunk, runs, .. } = *args;
    let plans: Vec<_> = args.symbols.iter().map(|&symbols| PrefillPlan { symbols, chunk, runs }).collect();
    let compute = &args.bench.compute;
    let entries = compute.measure(&args.checkpoint, &plans, PrefillPlan::check, prefill::measure)?;
    args.bench.print(&entries, prefill_table)
}

fn run_compare(args: &CompareArgs) -> Result<()> {
    let check = |plan: &DecodePlan, model: &dyn Model| plan.check(model.card());
    let plans = args.plans.plans();
    let compute = &args.bench.compute;
    let compare = |models: [&dyn Model; 2], plan, machine: &Machine, report: &mut dyn FnMut(usize)| {
        decode::compare(models, plan, args.pairs, machine, report)
    };
    let entries = compute.compare(args.models.sources()?, &plans, args.pairs, check, compare)?;
    args.bench.print(&entries, compare_table)
}

fn run_summarize(args: &SummarizeArgs) -> Result<()> {
    let SummarizeArgs { source, tokens, pairs, .. } = *args;
    let plans: Vec<_> = args.batch.iter().map(|&batch| SummaryBenchPlan { batch, source, tokens, pairs }).collect();
    let compute = &args.bench.compute;
    let entries =
        compute.compare(args.models.sources()?, &plans, pairs, SummaryBenchPlan::check, summaries::compare)?;
    args.bench.print(&entries, summaries_table)
}

#[derive(Debug, clap::Args)]
struct KernelsArgs {
    /// Minimum seconds per measurement.
    #[arg(long, value_name = "S", default_value_t = 0.2)]
    seconds: f64,
    /// Size of the weights in f32, in units of 10⁶ bytes. Matrices take turns, so that weights are read from memory, not caches.
    #[arg(long, value_name = "MB", default_value_t = 160, value_parser = count(1..=kernels::MAX_MEGABYTES))]
    megabytes: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

#[derive(Debug, clap::Args)]
struct ConstraintsArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Texts at a time. Several numbers are measured one after the other.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,8,16",
        value_parser = count(1..=decode::MAX_BATCH))]
    batch: Vec<usize>,
    /// Symbols of each text.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = count(40..=constraints::MAX_CHARS))]
    chars: usize,
    /// Runs of free text, masked text and record each, in turns.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count(1..=constraints::MAX_PAIRS))]
    pairs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

fn run_constraints(args: &ConstraintsArgs) -> Result<()> {
    let ConstraintsArgs { chars, pairs, .. } = *args;
    let plans: Vec<_> = args.batch.iter().map(|&batch| ConstraintPlan { batch, chars, pairs }).collect();
    let entries = args.bench.compute.with_each_setup(&args.checkpoint, |model, machine| {
        plans.iter().try_for_each(|plan| plan.check(model.card()))?;
        measure_each(plans.clone(), |plan| constraints::measure(model, plan, machine))
    })?;
    args.bench.print(&entries, constraints_table)
}

fn run_kernels(args: &KernelsArgs) -> Result<()> {
    let plan = KernelPlan { seconds: args.seconds, megabytes: args.megabytes };
    let compute = &args.bench.compute;
    plan.check()?;
    free_bytes().map_or(Ok(()), |bytes| plan.check_memory(&compute.dtype, bytes))?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let entries = measure_each(compute.threads(), |threads| {
        let pool = ThreadPool::new(threads.map_or_else(cores, usize::from)).into();
        let machine = Machine { compute: Compute { isa: compute.isa(), pool } };
        kernels::measure(&compute.dtype, plan, &machine)
    })?;
    args.bench.print(&entries.concat(), kernels_table)
}

/// The name of the arguments that are files.
const FILE: &str = "FILE";

/// Maximum bytes of a file.
const MAX_FILE: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
struct DocumentsArgs {
    /// Model: checkpoint folder, or name of a model in the user's models folder.
    #[arg(value_name = "DIR")]
    model: PathBuf,
    /// Files with documents. Each file is one document. If its name ends in .jsonl, each line is an object with the key `document`.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Model to compare with: a gain is its cost divided by that of DIR. Default: DIR with its pooling turned off, which only an
    /// MrT5 with a gate supports.
    #[arg(long, value_name = "DIR")]
    baseline: Option<PathBuf>,
    /// Tokens decoded for each document.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count(2..=1 << 24))]
    tokens: usize,
    /// Timed runs of each model on each document, in alternating order, after one warm-up run of each.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(1..=MAX_PAIRS))]
    pairs: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

/// A line of a file with several documents.
#[derive(Deserialize)]
struct Line {
    document: String,
}

fn run_documents(args: &DocumentsArgs) -> Result<()> {
    let DocumentsArgs { model, files, baseline, tokens, pairs, bench } = args;
    let mut all = Vec::new();
    for file in files {
        read_documents(file, &mut all)?;
    }
    let plan = DocumentBenchPlan { tokens: *tokens, pairs: *pairs };
    let model = checkpoint("DIR", Some(model))?;
    let baseline = baseline.as_deref().map(|folder| checkpoint("--baseline", Some(folder))).transpose()?;
    let mut entries = Vec::new();
    for setup in bench.compute.setups() {
        let ([a, b], machine) = match &baseline {
            Some(baseline) => setup.load([&model, baseline])?,
            None => setup.load_with_unpooled(&model)?,
        };
        let mut progress = Progress::measurements();
        let total = plan.pairs as u64 + 1;
        progress.update(0, total);
        let mut report = |rounds: usize| progress.update(rounds as u64 + 1, total);
        entries.push(documents::compare([&*a, &*b], &all, plan, &machine, &mut report)?);
    }
    bench.print(&entries, documents_table)
}

fn read_documents(file: &Path, all: &mut Vec<BenchDocument>) -> Result<()> {
    let shown = file.display();
    if file.extension().is_some_and(|extension| extension == "jsonl") {
        let lines: Vec<(u64, Line)> = json_lines(FILE, file, "an object with `document`")?;
        let document =
            |(number, line): (u64, Line)| BenchDocument { name: format!("{shown}:{number}"), text: line.document };
        all.extend(lines.into_iter().map(document));
        return Ok(());
    }
    let mut text = String::new();
    let opened = File::open(file).map_err(unreadable(FILE, file))?;
    opened.take(MAX_FILE + 1).read_to_string(&mut text).map_err(unreadable(FILE, file))?;
    if text.len() as u64 > MAX_FILE {
        return Err(Error::checkpoint(file, "the file", format!("at most {MAX_FILE} bytes"), "more"));
    }
    all.push(BenchDocument { name: shown.to_string(), text });
    Ok(())
}

// Measurements as tables.

/// Formats one line per measurement below the comma-separated titles in `head`.
fn columns(head: &str, lines: impl Iterator<Item = Vec<String>>) -> String {
    let mut rows = vec![head.split(", ").map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(lines.map(|line| line.iter().map(|cell| printable(cell)).collect()));
    table(&rows)
}

const DECODE: &str = "model, dtype, threads, isa, batch, context, wait, SF, chars/s, step p50 ms, middle %, \
    gap p50/p99 ms, at boundaries, MB/char, GB/s of ceiling";

fn decode_line(entry: &DecodeMeasurement) -> Vec<String> {
    let ms = |ns: f64| format!("{:.3}", ns / 1e6);
    let giga = |bytes: f64| format!("{:.1}", bytes / 1e9);
    let gap = |p50: Option<f64>, p99: Option<f64>| match (p50, p99) {
        (Some(p50), Some(p99)) => format!("{:.2}/{:.2}", p50 / 1e6, p99 / 1e6),
        _ => "-".into(),
    };
    let mut cells = setup_cells(&entry.measured);
    cells.extend([entry.batch, entry.context, entry.boundary_wait].map(|count| count.to_string()));
    let levels: Vec<_> = entry.levels.iter().map(|level| factor(Some(level.shortening_factor))).collect();
    cells.extend([
        if levels.is_empty() { factor(entry.shortening_factor) } else { levels.join(" × ") },
        format!("{:.1}", entry.chars_per_second),
        ms(entry.step_ns_p50),
        format!("{:.1}", entry.middle_share * 100.0),
        gap(entry.plain_gap_ns_p50, entry.plain_gap_ns_p99),
        gap(entry.boundary_gap_ns_p50, entry.boundary_gap_ns_p99),
        format!("{:.2}", entry.bytes_per_char / 1e6),
        format!("{} of {}", giga(entry.achieved_bytes_per_second), giga(entry.ceiling_bytes_per_second)),
    ]);
    cells
}

/// Returns the first cells of most lines: model, dtype, threads, instruction set.
fn constraints_table(entries: &[ConstraintMeasurement]) -> String {
    let spread = |quantiles: &Quantiles| {
        let Quantiles { median, p10, p90 } = quantiles;
        format!("{median:.3} ({p10:.3} to {p90:.3})")
    };
    let line = |entry: &ConstraintMeasurement| {
        let mut cells = setup_cells(&entry.measured);
        cells.extend([
            entry.batch.to_string(),
            format!("{:.0}", entry.chars_per_second.median),
            spread(&entry.mask),
            if entry.is_json { "JSON" } else { "regex" }.to_owned(),
            format!("{:.0}", entry.forced_share * 100.0),
            spread(&entry.record),
            spread(&entry.compile_ms),
        ]);
        cells
    };
    let head = "model, dtype, threads, isa, batch, free chars/s, masked ÷ free time, record, forced %, record ÷ free speed, \
        10 kB schema ms";
    columns(head, entries.iter().map(line))
}

fn setup_cells(measured: &MeasuredModel) -> Vec<String> {
    vec![measured.model.clone(), measured.dtype.to_owned(), measured.threads.to_string(), measured.isa.to_owned()]
}

fn factor(factor: Option<f64>) -> String {
    factor.map_or("-".into(), |factor| format!("{factor:.2}"))
}

/// Returns one note for each model whose vocabulary lacks letters of the sample, however often it was measured.
fn missing_letters<'a>(entries: impl Iterator<Item = (&'a str, usize)>) -> String {
    let mut models: Vec<_> = entries.filter(|(_, letters)| *letters > 0).collect();
    models.dedup();
    let note = |(model, letters)| {
        let model = printable(model);
        format!("{model}: its vocabulary lacks {letters} letters of the sample, so SF is not that of English\n")
    };
    models.into_iter().map(note).collect()
}

fn decode_table(entries: &[DecodeMeasurement]) -> String {
    columns(DECODE, entries.iter().map(decode_line))
        + &thresholds(entries)
        + &token_lengths(entries.iter())
        + &missing_letters(entries.iter().map(|entry| (&*entry.measured.model, entry.foreign_letters)))
}

/// Returns a table of thresholds, which only models of bytes have, with the bits per byte and the speed that each gives; empty if none
/// was given.
fn thresholds(entries: &[DecodeMeasurement]) -> String {
    let line = |entry: &DecodeMeasurement| {
        Some(vec![
            entry.measured.model.clone(),
            entry.measured.dtype.to_owned(),
            entry.batch.to_string(),
            entry.boundary_threshold?.to_string(),
            factor(entry.shortening_factor),
            format!("{:.4}", entry.bits_per_char?),
            format!("{:.1}", entry.chars_per_second),
        ])
    };
    let lines: Vec<_> = entries.iter().filter_map(line).collect();
    let head = "model, dtype, batch, threshold, bytes/segment, bits/byte, bytes/s";
    if lines.is_empty() { String::new() } else { format!("\n{}", columns(head, lines.into_iter())) }
}

fn prefill_table(entries: &[PrefillMeasurement]) -> String {
    let head = "model, dtype, threads, isa, symbols, chunk, SF, symbols/s, run p50 ms, p10, p90, GFLOP/s, peak GFLOP/s";
    let ms = |ns: f64| format!("{:.2}", ns / 1e6);
    let line = |entry: &PrefillMeasurement| {
        let mut cells = setup_cells(&entry.measured);
        cells.extend([entry.symbols.to_string(), entry.chunk.to_string(), factor(entry.shortening_factor)]);
        cells.push(format!("{:.1}", entry.symbols_per_second));
        cells.extend([entry.run_ns_p50, entry.run_ns_p10, entry.run_ns_p90].map(ms));
        cells.push(format!("{:.1}", entry.gflops));
        cells.push(entry.peak_gflops.map_or("-".into(), |gflops| format!("{gflops:.1}")));
        cells
    };
    let no_peak = no_peak(entries.iter().any(|entry| entry.peak_gflops.is_none()));
    columns(head, entries.iter().map(line))
        + no_peak
        + &missing_letters(entries.iter().map(|entry| (&*entry.measured.model, entry.foreign_letters)))
}

/// Returns a note for tables in which a rate has no peak to compare with.
fn no_peak(missing: bool) -> &'static str {
    let note =
        "int8, int4: no peak, since the measured peak is that of f32 products, which differs from that of integers\n";
    if missing { note } else { "" }
}

fn compare_table(comparisons: &[DecodeComparison]) -> String {
    let both = || comparisons.iter().flat_map(|comparison| [&comparison.a, &comparison.b]);
    let mut text = columns(DECODE, both().map(decode_line));
    text.push('\n');
    for DecodeComparison { batch, context, boundary_wait, pairs, a, b, ratio: Quantiles { median, p10, p90 } } in
        comparisons
    {
        let [a, b] = [a, b].map(|entry| printable(&entry.measured.model));
        text += &format!(
            "batch {batch}, context {context}, wait {boundary_wait}: {a} is {median:.3} times as fast as {b} per character \
             (p10 {p10:.3}, p90 {p90:.3}, {pairs} pairs)\n"
        );
    }
    text + &token_lengths(both())
        + &missing_letters(both().map(|entry| (&*entry.measured.model, entry.foreign_letters)))
}

/// Returns one note for each model of tokens: the columns that count symbols count tokens.
fn token_lengths<'a>(entries: impl Iterator<Item = &'a DecodeMeasurement>) -> String {
    let of_tokens = entries.filter(|entry| entry.chars_per_symbol != 1.0);
    let mut notes: Vec<_> = of_tokens
        .map(|entry| {
            let model = printable(&entry.measured.model);
            let chars = entry.chars_per_symbol;
            format!("{model}: a symbol is a token of {chars:.2} characters on average; steps, gaps and contexts count tokens\n")
        })
        .collect();
    notes.dedup();
    notes.concat()
}

fn summaries_table(comparisons: &[SummaryComparison]) -> String {
    let head = "model, dtype, threads, isa, batch, encode ms, GFLOP/s of peak, after upload, decode ms/token, \
        GB/s of ceiling, request s, vectors";
    let line = |batch: usize, entry: &SummaryBenchResult| {
        let mut cells = setup_cells(&entry.measured);
        cells.push(batch.to_string());
        cells.push(format!("{:.1}", entry.encode_ns / 1e6));
        let share = |rate: f64, peak: f64| format!("{rate:.1} of {peak:.1} ({:.0} %)", 100.0 * rate / peak.max(1e-9));
        cells.push(share(entry.encode_gflops, entry.peak_gflops));
        cells.push(format!("{:.1} %", entry.encode_share_after_upload * 100.0));
        cells.push(format!("{:.3}", entry.decode_ns_per_token / 1e6));
        let rate = entry.decode_bytes_per_step as f64 / entry.decode_ns_per_token.max(1.0);
        cells.push(share(rate, entry.ceiling_bytes_per_second / 1e9));
        cells.push(format!("{:.2}", entry.request_ns / 1e9));
        cells.push(entry.vectors.to_string());
        cells
    };
    let both = |pair: &SummaryComparison| [line(pair.plan.batch, &pair.a), line(pair.plan.batch, &pair.b)];
    let mut text = columns(head, comparisons.iter().flat_map(both));
    text.push('\n');
    for SummaryComparison { plan, a, b, decode_ratio, request_ratio } in comparisons {
        let SummaryBenchPlan { batch, source, tokens, pairs } = plan;
        let times =
            |Quantiles { median, p10, p90 }: &Quantiles| format!("{median:.2} times (p10 {p10:.2}, p90 {p90:.2})");
        let [a, b] = [a, b].map(|entry| printable(&entry.measured.model));
        let [decode, total] = [decode_ratio, request_ratio].map(times);
        text += &format!(
            "batch {batch}, {source} tokens read, {tokens} written: {a} is {decode} as fast as {b} per token, {total} in total, \
             {pairs} pairs\n"
        );
    }
    text
}

/// Formats `weir bench documents`: a line for each document, and lines for all of them. A is the model, B its baseline.
fn documents_table(comparisons: &[DocumentComparison]) -> String {
    let head = "document, bytes, kept, A encode ms, B, A ms/token, B, A cross KB, B, gain encode, gain/token, gain total, gain bytes";
    let gain = |Quantiles { median, p10, p90 }: &Quantiles| format!("{median:.2} ({p10:.2}-{p90:.2})");
    let line = |result: &DocumentResult| {
        let DocumentResult { document, bytes, cut, a, b, .. } = result;
        let pair = |value: &dyn Fn(&DocumentCost) -> f64| [a, b].map(|cost| format!("{:.3}", value(cost)));
        let mut cells = vec![document.clone(), format!("{bytes}{}", if *cut { " (cut)" } else { "" })];
        cells.push(a.kept_share.map_or("-".into(), |share| format!("{:.1} %", share * 100.0)));
        cells.extend(pair(&|cost| cost.encode_ns / 1e6));
        cells.extend(pair(&|cost| cost.decode_ns_per_token / 1e6));
        cells.extend(pair(&|cost| cost.cross_attention_bytes as f64 / 1e3));
        cells.extend([&result.encode_gain, &result.decode_gain, &result.total_gain].map(gain));
        cells.push(format!("{:.2}", result.cross_attention_gain));
        cells
    };
    let mut text = String::new();
    for comparison in comparisons {
        let DocumentComparison { plan, a, b, documents, total, median } = comparison;
        let [first, second] = [a, b].map(|measured| printable(&measured.model));
        text += &format!(
            "A: {first}, B: {second}, {}, {} threads; {} tokens decoded, {} pairs; gain: B ÷ A with p10 and p90\n",
            a.dtype, a.threads, plan.tokens, plan.pairs
        );
        text += &columns(head, documents.iter().chain([total, median]).map(line));
    }
    text
}

fn kernels_table(entries: &[KernelMeasurement]) -> String {
    let head = "kernel, dtype, threads, isa, weights, shape, rows, keys, p50 us, p10, p90, GB/s, ceiling GB/s, \
        GFLOP/s, peak GFLOP/s";
    let count = |count: Option<usize>| count.map_or("-".into(), |count| count.to_string());
    let name = |name: Option<&str>| name.unwrap_or("-").to_owned();
    let rate = |rate: Option<f64>, unit: f64| rate.map_or("-".into(), |rate| format!("{:.1}", rate / unit));
    let line = |entry: &KernelMeasurement| {
        let shape = entry.inputs.zip(entry.outputs).map(|(inputs, outputs)| format!("{inputs}->{outputs}"));
        let mut cells =
            vec![entry.kernel.to_owned(), name(entry.dtype), entry.threads.to_string(), entry.isa.to_owned()];
        cells.extend([name(entry.weights), name(shape.as_deref()), entry.rows.to_string(), count(entry.keys)]);
        cells.extend([entry.ns_p50, entry.ns_p10, entry.ns_p90].map(|ns| format!("{:.2}", ns / 1e3)));
        cells.extend([entry.bytes_per_second, entry.ceiling_bytes_per_second].map(|bytes| rate(bytes, 1e9)));
        cells.extend([entry.gflops, entry.peak_gflops].map(|gflops| rate(gflops, 1.0)));
        cells
    };
    let rated = |entry: &KernelMeasurement| entry.gflops.is_some() && entry.peak_gflops.is_none();
    columns(head, entries.iter().map(line)) + no_peak(entries.iter().any(rated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_letters_are_noted_once_per_model() {
        assert_eq!(missing_letters([("a", 0)].into_iter()), "");
        assert_eq!(missing_letters([("a", 3), ("a", 3), ("b", 0)].into_iter()).lines().count(), 1);
    }
}
