//! Attention of one row, a norm, and the hand-over of work to the threads.

use super::{Ceilings, Entry, Plan, Work, timing};
use crate::{
    error::Result,
    kernels::{
        Dtype,
        attention::{
            AttentionHead, Bias, DistanceTable, POSITIONS, PageLayout, QueryBuffer, QueryRow, QueryVariants, attend,
            write,
        },
        memory::Arena,
        pages::{Page, PagePool},
        rowwise::{LayerNorm, add_layer_norm},
    },
    report::machine::Machine,
};
use std::hint::black_box;

/// Keys that a row meets.
pub(super) const KEYS: [usize; 3] = [128, 512, 2048];
/// Numbers of a row.
pub(super) const WIDTHS: [usize; 2] = [512, 2048];
const HEADS: usize = 8;
const HEAD_DIM: usize = 64;
const WIDTH: usize = HEADS * HEAD_DIM;
/// Memory that is mapped at a time for distances.
const ARENA: usize = 4 << 20;

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index % 251) as f32 / 251.0 - 0.5).collect()
}

/// Keys and values of one layer, and R of their distances.
pub(super) struct Attention {
    layout: PageLayout,
    keys: usize,
    pages: Vec<Page>,
    table: DistanceTable,
}

impl Attention {
    /// So many keys, stored in one type of numbers.
    pub(super) fn new(dtype: Dtype, keys: usize) -> Result<Self> {
        let layout = PageLayout { dtype, layers: 1, heads: HEADS, head_dim: HEAD_DIM, output: 0 };
        let (pool, row) = (PagePool::new(usize::MAX), numbers(WIDTH));
        let page = |_| {
            let mut page = pool.allocate(layout.page_bytes())?;
            let bytes = page.bytes_mut()?;
            (0..POSITIONS).for_each(|slot| write(&layout, bytes, 0, slot, &row, &row));
            Ok(page)
        };
        let pages = (0..keys.div_ceil(POSITIONS)).map(page).collect::<Result<_>>()?;
        let table = DistanceTable::new(dtype, HEADS, HEAD_DIM, keys, Arena::new(ARENA).into());
        table.cover(keys - 1, |range| numbers(range.len() * WIDTH))?;
        Ok(Self { layout, keys, pages, table })
    }

    /// The last position attends to all of them, head by head on all threads, with the relative distances' term or without.
    pub(super) fn measure(&self, distances: bool, peak_gflops: f64, plan: Plan, machine: &Machine) -> Result<Entry> {
        let (mut probes, mut out) = (QueryBuffer::default(), vec![0.0; WIDTH]);
        probes.values_mut(WIDTH).copy_from_slice(&numbers(WIDTH));
        probes.finish(&machine.compute, self.layout.dtype, HEAD_DIM);
        let times = timing::calls(plan.least(), &mut |_| {
            machine.compute.pool.for_chunks(&mut out, HEAD_DIM, true, &|head, out| {
                let source = AttentionHead {
                    pages: &self.pages,
                    start: 0,
                    layout: &self.layout,
                    layer: 0,
                    head,
                    block: usize::MAX,
                    distances: distances.then_some(&self.table),
                    bias: Bias::None,
                    scale: 0.125,
                    recently_read: true,
                };
                let (content, distance) = (QueryVariants::single(&probes, head), probes.get(head));
                let row = QueryRow { first_key: 0, position: self.keys - 1, content, distance };
                attend(machine.compute.isa, &source, &[row], &mut [out]);
            });
            black_box(&mut out);
        })?;
        let mut entry = Entry::new(if distances { "attention+distances" } else { "attention" }, 1, times, machine);
        let work = self.work(distances);
        let ceilings = Ceilings { read: machine.read_bytes_per_second(work.bytes)?, peak_gflops: Some(peak_gflops) };
        entry = entry.rated(work, ceilings);
        entry.dtype = Some(self.layout.dtype.name());
        (entry.inputs, entry.outputs, entry.keys) = (Some(WIDTH), Some(WIDTH), Some(self.keys));
        Ok(entry)
    }

    /// Keys and values, and R of as many distances.
    fn work(&self, distances: bool) -> Work {
        let numbers = self.keys * WIDTH;
        let table = if distances { self.layout.distance_bytes(self.keys) } else { 0 };
        let bytes = self.keys * self.layout.bytes_per_key() + table;
        Work { bytes, working_set: bytes, multiply_adds: numbers * if distances { 3 } else { 2 } }
    }
}

/// Residual and LayerNorm of one row.
pub(super) fn norm(width: usize, plan: Plan, machine: &Machine) -> Result<Entry> {
    let (mut x, y) = (numbers(width), numbers(width));
    let parameters = LayerNorm { weight: vec![1.0; width], bias: vec![0.0; width], eps: 1e-5 };
    let times = timing::calls(plan.least(), &mut |_| {
        add_layer_norm(&machine.compute, &mut x, black_box(&y[..]), &parameters);
        black_box(&mut x);
    })?;
    let mut entry = Entry::new("norm", 1, times, machine);
    (entry.inputs, entry.outputs) = (Some(width), Some(width));
    Ok(entry)
}

/// As many empty tasks as there are threads, handed out and waited for.
pub(super) fn dispatch(plan: Plan, machine: &Machine) -> Result<Entry> {
    let tasks = machine.threads();
    let nothing = |task: usize| {
        black_box(task);
    };
    let times = timing::each(plan.least(), &mut || machine.compute.pool.run(tasks, &nothing))?;
    Ok(Entry::new("dispatch", tasks, times, machine))
}
