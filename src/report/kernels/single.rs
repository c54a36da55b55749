//! Benchmarks of attention of one row, of layer norm, and of starting work on the threads.

use crate::report::{
    kernels::measurement::{KernelMeasurement, KernelPlan, KernelWork, time_batches, time_each},
    machine::Machine,
};
use std::hint::black_box;
use weir_kernels::{
    CacheDtype,
    attention::{
        AttentionHead, Bias, DistanceTable, KeyPages, POSITIONS, PageLayout, QueryBuffer, QueryRow, QueryVariants,
        attend, write,
    },
    error::Result,
    memory::Arena,
    pages::{Page, PagePool},
    rowwise::{LayerNorm, add_layer_norm},
};

/// Keys that a query attends to.
pub(super) const KEYS: [usize; 3] = [128, 512, 2048];

/// Widths of a normalized row.
pub(super) const WIDTHS: [usize; 2] = [512, 2048];

const HEADS: usize = 8;

const HEAD_DIM: usize = 64;

const WIDTH: usize = HEADS * HEAD_DIM;

/// Bytes that are mapped at a time for distances.
const ARENA: usize = 4 << 20;

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index % 251) as f32 / 251.0 - 0.5).collect()
}

/// Keys and values of one layer, and the table of their distances.
pub(super) struct Attention {
    layout: PageLayout,
    keys: usize,
    pages: Vec<Page>,
    table: DistanceTable,
}

impl Attention {
    /// Fills pages with `keys` keys and values.
    pub(super) fn new(dtype: CacheDtype, keys: usize) -> Result<Self> {
        let layout = PageLayout { dtype, layers: 1, heads: HEADS, head_dim: HEAD_DIM, output: 0 };
        let pool = PagePool::new(usize::MAX);
        let row = values(WIDTH);
        let page = |_| {
            let mut page = pool.allocate(layout.page_bytes())?;
            let bytes = page.bytes_mut()?;
            (0..POSITIONS).for_each(|slot| write(&layout, bytes, 0, slot, &row, &row));
            Ok(page)
        };
        let pages = (0..keys.div_ceil(POSITIONS)).map(page).collect::<Result<_>>()?;
        let table = DistanceTable::new(dtype, HEADS, HEAD_DIM, keys, Arena::new(ARENA).into());
        table.cover(keys - 1, |range| values(range.len() * WIDTH))?;
        Ok(Self { layout, keys, pages, table })
    }

    /// Measures attention of the last position to all keys, head by head on all threads, with or without distances.
    pub(super) fn measure(
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
        let ceiling = machine.read_bytes_per_second(work.bytes)?;
        let name = if distances { "attention+distances" } else { "attention" };
        Ok(KernelMeasurement {
            dtype: Some(self.layout.dtype.name()),
            inputs: Some(WIDTH),
            outputs: Some(WIDTH),
            keys: Some(self.keys),
            ..KernelMeasurement::new(name, 1, times, machine).with_rates(work, ceiling, Some(peak_gflops))
        })
    }

    /// Returns the work of one call.
    fn work(&self, distances: bool) -> KernelWork {
        let values = self.keys * WIDTH;
        let table = if distances { self.layout.distance_bytes(self.keys) } else { 0 };
        let bytes = self.keys * self.layout.bytes_per_key() + table;
        KernelWork { bytes, working_set: bytes, multiply_adds: values * if distances { 3 } else { 2 } }
    }
}

/// Measures the residual sum and layer norm of one row.
pub(super) fn norm(width: usize, plan: KernelPlan, machine: &Machine) -> Result<KernelMeasurement> {
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
pub(super) fn dispatch(plan: KernelPlan, machine: &Machine) -> Result<KernelMeasurement> {
    let tasks = machine.threads();
    let empty_task = |task: usize| {
        black_box(task);
    };
    let times = time_each(plan.min_time(), &mut || machine.compute.pool.run(tasks, &empty_task))?;
    Ok(KernelMeasurement::new("dispatch", tasks, times, machine))
}
