//! Benchmark of single kernels without a model, compared with the limits of the machine.
//!
//! Measures matrix products with weights in memory (cold) and in a cache (hot), attention of one row, layer norm, and the time to start
//! and join the threads.

use crate::report::machine::{LIMIT_TIME, Machine};
use crate::report::quantiles;
use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};
use weir_kernels::attention::{
    AttentionHead, Bias, DistanceTable, KeyPages, POSITIONS, PageLayout, QueryBuffer, QueryRow, QueryVariants, attend,
    write,
};
use weir_kernels::error::{Error, Result};
use weir_kernels::linear::{Epilogue, Linear, QuantizedRows, WeightArena};
use weir_kernels::memory::Arena;
use weir_kernels::pages::{Page, PagePool};
use weir_kernels::rowwise::{LayerNorm, add_layer_norm};
use weir_kernels::{CacheDtype, Dtype, Isa};
use weir_measure::stats::Quantiles;

/// Measures all kernels, with matrices, keys and values in each of `dtypes`. Fails if the plan is invalid or memory runs out.
pub fn measure(dtypes: &[Dtype], plan: KernelPlan, machine: &Machine) -> Result<Vec<KernelMeasurement>> {
    plan.check()?;
    let peak = 2.0 * machine.multiply_adds_per_second() / 1e9;
    let mut entries = Vec::new();
    for &dtype in dtypes {
        for shape in SHAPES {
            let peak = (!dtype.is_integer()).then_some(peak);
            entries.extend(measure_matrix(dtype, shape, peak, plan, machine)?);
        }
    }
    // int8 and int4 have the same keys and values
    let is_needed = |cache: &CacheDtype| dtypes.iter().any(|dtype| dtype.cache_dtype() == *cache);
    for dtype in CacheDtype::ALL.into_iter().filter(is_needed) {
        for keys in KEYS {
            let attention = Attention::new(machine.compute.isa, dtype, keys)?;
            entries.push(attention.measure(false, peak, plan, machine)?);
            entries.push(attention.measure(true, peak, plan, machine)?);
        }
    }
    for width in WIDTHS {
        entries.push(norm(width, plan, machine)?);
    }
    entries.push(dispatch(plan, machine)?);
    Ok(entries)
}

/// Maximum size of the matrices in memory, in units of 10⁶ bytes.
pub const MAX_MEGABYTES: usize = 1 << 16;

const MEGABYTE: usize = 1_000_000;

/// Maximum seconds of one measurement.
pub const MAX_SECONDS: f64 = 60.0;

const MIN_SAMPLES: usize = 11;

/// Maximum samples, all of which are kept in memory.
const MAX_SAMPLES: usize = 1 << 20;

/// Minimum time of a batch of calls, so that the cost of reading the clock is negligible.
const SAMPLE: Duration = Duration::from_micros(200);

/// Duration and size of the measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelPlan {
    /// Minimum seconds of one measurement.
    pub seconds: f64,
    /// Size of the matrices that take turns as cold weights, as if stored in f32, in units of 10⁶ bytes.
    pub megabytes: usize,
}

impl KernelPlan {
    /// Checks the plan against its limits. The error names the command-line option and its limit.
    pub fn check(&self) -> Result<()> {
        if self.seconds > 0.0 && self.seconds <= MAX_SECONDS {
            return Ok(());
        }
        let bound = format!("above 0, up to {MAX_SECONDS}");
        Err(Error::BadOption { field: "--seconds", found: self.seconds.to_string(), bound })
    }

    /// Checks that the matrices, and a buffer of the same size to measure the read bandwidth, fit into free memory.
    /// The error names the size that would fit.
    pub fn check_memory(&self, dtypes: &[Dtype], free_bytes: usize) -> Result<()> {
        // the option counts f32 bytes; a narrower type needs less
        let compression = dtypes.iter().map(|dtype| 4 / dtype.cache_dtype().bytes()).min().unwrap_or(1);
        let fit = free_bytes / MEGABYTE / 2 * compression;
        if self.megabytes <= fit {
            return Ok(());
        }
        let free = free_bytes / MEGABYTE;
        let why = format!("the matrices and a buffer of equal size must fit into {free} MB of free memory");
        let bound = format!("at most {fit} ({why})");
        Err(Error::BadOption { field: "--megabytes", found: self.megabytes.to_string(), bound })
    }

    fn min_time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Returns the minimum time of measuring the read rate next to a kernel.
    fn limit_time(&self) -> Duration {
        LIMIT_TIME.min(self.min_time())
    }
}

/// Result of a kernel benchmark. Fields that do not apply to the kernel are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KernelMeasurement {
    /// Kernel: `matrix`, `matrix+gelu`, `attention`, `attention+distances`, `norm`, `dispatch`.
    pub kernel: &'static str,
    /// Type in which the matrix, or keys and values, are stored.
    pub dtype: Option<&'static str>,
    /// Threads that share the work.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: &'static str,
    /// `cold` (many matrices take turns) or `hot` (the same matrix in every call).
    pub weights: Option<&'static str>,
    /// Width of an input row.
    pub inputs: Option<usize>,
    /// Width of an output row.
    pub outputs: Option<usize>,
    /// Rows of a call.
    pub rows: usize,
    /// Keys that a query attends to.
    pub keys: Option<usize>,
    /// Time of a call: median over groups of calls.
    pub ns_p50: f64,
    /// 10th percentile over groups of calls.
    pub ns_p10: f64,
    /// 90th percentile over groups of calls.
    pub ns_p90: f64,
    /// Bytes of weights, or of keys, values and distances, that a call reads.
    pub bytes: Option<usize>,
    /// Bytes that calls read before they read the same ones again.
    pub working_set_bytes: Option<usize>,
    /// Read rate of the median call.
    pub bytes_per_second: Option<f64>,
    /// Measured rate of a streaming read of the same working set on the same threads.
    pub ceiling_bytes_per_second: Option<f64>,
    /// GFLOP/s of the median call: two floating-point operations per multiply-add.
    pub gflops: Option<f64>,
    /// Measured peak GFLOP/s of the machine in f32; `None` for int8, whose operations are not floating-point.
    pub peak_gflops: Option<f64>,
}

impl KernelMeasurement {
    /// Creates a result without rates.
    fn new(kernel: &'static str, rows: usize, times: Quantiles, machine: &Machine) -> Self {
        Self {
            kernel,
            threads: machine.threads(),
            isa: machine.compute.isa.name(),
            rows,
            ns_p50: times.median,
            ns_p10: times.p10,
            ns_p90: times.p90,
            ..Self::default()
        }
    }

    /// Adds the rates of a call, and the measured limits of the machine: its read rate and its peak arithmetic.
    fn with_rates(mut self, work: KernelWork, ceiling: f64, peak_gflops: Option<f64>) -> Self {
        self.bytes = Some(work.bytes);
        self.working_set_bytes = Some(work.working_set);
        self.bytes_per_second = Some(work.bytes as f64 / self.ns_p50 * 1e9);
        self.ceiling_bytes_per_second = Some(ceiling);
        self.gflops = Some(2.0 * work.multiply_adds as f64 / self.ns_p50);
        self.peak_gflops = peak_gflops;
        self
    }
}

#[derive(Clone, Copy)]
struct KernelWork {
    /// Bytes that a call reads.
    bytes: usize,
    /// Bytes that calls read before they read the same ones again.
    working_set: usize,
    multiply_adds: usize,
}

/// Times batches of calls for at least `min_time` and returns the nanoseconds per call. `call` receives its number.
fn time_batches(min_time: Duration, call: &mut dyn FnMut(usize)) -> Result<Quantiles> {
    let mut number = 0;
    let mut batch = 1;
    let mut sample = |batch: usize| {
        let start = Instant::now();
        for _ in 0..batch {
            call(number);
            number += 1;
        }
        start.elapsed()
    };
    sample(1);
    while sample(batch) < SAMPLE {
        batch *= 2;
    }
    repeat(min_time, &mut || sample(batch).as_nanos() as f64 / batch as f64)
}

/// Times each call separately, including the cost of reading the clock, so that slow calls are visible.
fn time_each(min_time: Duration, call: &mut dyn FnMut()) -> Result<Quantiles> {
    call();
    repeat(min_time, &mut || {
        let start = Instant::now();
        call();
        start.elapsed().as_nanos() as f64
    })
}

fn repeat(min_time: Duration, sample: &mut dyn FnMut() -> f64) -> Result<Quantiles> {
    let start = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < MIN_SAMPLES || (start.elapsed() < min_time && samples.len() < MAX_SAMPLES) {
        samples.push(sample());
    }
    // a clock that is too coarse must not make a rate infinite
    quantiles(samples.into_iter().map(|ns| ns.max(1e-3)).collect())
}

#[derive(Clone, Copy, PartialEq)]
struct MatrixShape {
    inputs: usize,
    outputs: usize,
}

/// Matrices of a model of width 512: feed-forward up and down, attention output, fused query-key-value projection.
const SHAPES: [MatrixShape; 4] = [
    MatrixShape { inputs: 512, outputs: 2048 },
    MatrixShape { inputs: 2048, outputs: 512 },
    MatrixShape { inputs: 512, outputs: 512 },
    MatrixShape { inputs: 512, outputs: 1536 },
];

/// Shape that is also measured with GELU.
const ACTIVATED: MatrixShape = SHAPES[0];

/// Rows of decoding steps, and of a prefill chunk.
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 512];

/// Packs `count` equal matrices.
fn matrices(dtype: Dtype, shape: MatrixShape, count: usize) -> Result<Vec<Linear>> {
    let MatrixShape { inputs, outputs } = shape;
    let weight = values(inputs * outputs);
    let bias = vec![0.1; outputs];
    let arena = WeightArena::new(dtype);
    (0..count).map(|_| Linear::pack(&arena, &weight, &bias, outputs, inputs)).collect()
}

/// Measures one shape with every number of rows: cold, hot, and hot with GELU where models use it.
fn measure_matrix(
    dtype: Dtype,
    shape: MatrixShape,
    peak_gflops: Option<f64>,
    plan: KernelPlan,
    machine: &Machine,
) -> Result<Vec<KernelMeasurement>> {
    // the same number of matrices for every dtype, so that narrow ones may fit into a cache where wide ones do not
    let count = (plan.megabytes * MEGABYTE).div_ceil(shape.inputs * shape.outputs * size_of::<f32>());
    let matrices = matrices(dtype, shape, count)?;
    let mut entries = Vec::new();
    for (weights, matrices) in [("cold", &matrices[..]), ("hot", &matrices[..1])] {
        let working_set = matrices.iter().map(Linear::bytes).sum();
        let ceiling = machine.read_bytes_per_second(working_set, plan.limit_time())?;
        let gelu = (weights == "hot" && shape == ACTIVATED).then_some(("matrix+gelu", Epilogue::Gelu));
        for (kernel, epilogue) in [Some(("matrix", Epilogue::None)), gelu].into_iter().flatten() {
            for rows in ROWS {
                let (times, work) = product(matrices, rows, epilogue, plan, machine)?;
                let measurement = KernelMeasurement::new(kernel, rows, times, machine);
                entries.push(KernelMeasurement {
                    dtype: Some(dtype.name()),
                    weights: Some(weights),
                    inputs: Some(shape.inputs),
                    outputs: Some(shape.outputs),
                    ..measurement.with_rates(KernelWork { working_set, ..work }, ceiling, peak_gflops)
                });
            }
        }
    }
    Ok(entries)
}

/// Times products with the matrices in turns. Returns the time and the work of one product.
fn product(
    matrices: &[Linear],
    rows: usize,
    epilogue: Epilogue,
    plan: KernelPlan,
    machine: &Machine,
) -> Result<(Quantiles, KernelWork)> {
    let inputs = matrices[0].inputs();
    let outputs = matrices[0].outputs();
    let x = vec![0.5; rows * inputs];
    let mut out = vec![0.0; rows * outputs];
    let mut quantized = QuantizedRows::default();
    let times = time_batches(plan.min_time(), &mut |number| {
        let matrix = &matrices[number % matrices.len()];
        matrix.apply(&machine.compute, black_box(&x), epilogue, &mut quantized, &mut out);
        black_box(&mut out);
    })?;
    let bytes = matrices[0].bytes();
    Ok((times, KernelWork { bytes, working_set: bytes, multiply_adds: rows * inputs * outputs }))
}

/// Keys that a query attends to.
const KEYS: [usize; 3] = [128, 512, 2048];

/// Widths of a normalized row.
const WIDTHS: [usize; 2] = [512, 2048];

const HEADS: usize = 8;

const HEAD_DIM: usize = 64;

const WIDTH: usize = HEADS * HEAD_DIM;

/// Bytes that are mapped at a time for distances.
const ARENA: usize = 4 << 20;

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index % 251) as f32 / 251.0 - 0.5).collect()
}

/// Keys and values of one layer, and the table of their distances.
struct Attention {
    layout: PageLayout,
    keys: usize,
    pages: Vec<Page>,
    table: DistanceTable,
}

impl Attention {
    /// Fills pages with `keys` keys and values.
    fn new(isa: Isa, dtype: CacheDtype, keys: usize) -> Result<Self> {
        let layout = PageLayout { dtype, layers: 1, heads: HEADS, head_dim: HEAD_DIM, output: 0 };
        let pool = PagePool::new(usize::MAX);
        let row = values(WIDTH);
        let page = |_| {
            let mut page = pool.allocate(layout.page_bytes())?;
            let bytes = page.bytes_mut()?;
            (0..POSITIONS).for_each(|slot| write(isa, &layout, bytes, 0, slot, &row, &row));
            Ok(page)
        };
        let pages = (0..keys.div_ceil(POSITIONS)).map(page).collect::<Result<_>>()?;
        let table = DistanceTable::new(dtype, HEADS, HEAD_DIM, keys, Arena::new(ARENA).into());
        table.cover(keys - 1, |range| values(range.len() * WIDTH))?;
        Ok(Self { layout, keys, pages, table })
    }

    /// Measures attention of the last position to all keys, head by head on all threads, with or without distances.
    fn measure(
        &self,
        distances: bool,
        peak_gflops: f64,
        plan: KernelPlan,
        machine: &Machine,
    ) -> Result<KernelMeasurement> {
        let mut queries = QueryBuffer::default();
        let mut out = vec![0.0; WIDTH];
        queries.values_mut(WIDTH).copy_from_slice(&values(WIDTH));
        queries.finish(&machine.compute, self.layout.dtype, HEAD_DIM);
        let times = time_batches(plan.min_time(), &mut |_| {
            machine.compute.pool.for_chunks(&mut out, HEAD_DIM, true, &|head, out| {
                let attention_head = AttentionHead {
                    layout: &self.layout,
                    layer: 0,
                    head,
                    block: usize::MAX,
                    distances: distances.then_some(&self.table),
                    bias: Bias::None,
                    scale: 0.125,
                    sink: false,
                };
                let row = QueryRow {
                    keys: KeyPages { pages: &self.pages, start: 0, recently_read: true },
                    first_key: 0,
                    position: self.keys - 1,
                    content: QueryVariants::single(&queries, head),
                    distance: queries.get(head),
                };
                attend(machine.compute.isa, &attention_head, &[row], &mut [out]);
            });
            black_box(&mut out);
        })?;
        let work = self.work(distances);
        let ceiling = machine.read_bytes_per_second(work.bytes, plan.limit_time())?;
        let name = if distances { "attention+distances" } else { "attention" };
        Ok(KernelMeasurement {
            dtype: Some(self.layout.dtype.name()),
            inputs: Some(WIDTH),
            outputs: Some(WIDTH),
            keys: Some(self.keys),
            ..KernelMeasurement::new(name, 1, times, machine).with_rates(work, ceiling, Some(peak_gflops))
        })
    }

    fn work(&self, distances: bool) -> KernelWork {
        let values = self.keys * WIDTH;
        let table = if distances { self.layout.distance_bytes(self.keys) } else { 0 };
        let bytes = self.keys * self.layout.bytes_per_key() + table;
        KernelWork { bytes, working_set: bytes, multiply_adds: values * if distances { 3 } else { 2 } }
    }
}

/// Measures the residual sum and layer norm of one row.
fn norm(width: usize, plan: KernelPlan, machine: &Machine) -> Result<KernelMeasurement> {
    let mut x = values(width);
    let y = values(width);
    let parameters = LayerNorm { weight: vec![1.0; width], bias: vec![0.0; width], eps: 1e-5 };
    let times = time_batches(plan.min_time(), &mut |_| {
        add_layer_norm(&machine.compute, &mut x, black_box(&y[..]), &parameters);
        black_box(&mut x);
    })?;
    let measurement = KernelMeasurement::new("norm", 1, times, machine);
    Ok(KernelMeasurement { inputs: Some(width), outputs: Some(width), ..measurement })
}

/// Measures starting and joining one empty task per thread.
fn dispatch(plan: KernelPlan, machine: &Machine) -> Result<KernelMeasurement> {
    let tasks = machine.threads();
    let empty_task = |task: usize| {
        black_box(task);
    };
    let times = time_each(plan.min_time(), &mut || machine.compute.pool.run(tasks, &empty_task))?;
    Ok(KernelMeasurement::new("dispatch", tasks, times, machine))
}
