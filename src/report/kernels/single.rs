//! Attention of one row, row-wise functions, and the hand-over of work to the threads.

use super::{Ceilings, Entry, Plan, Work, timing};
use crate::{
    error::Result,
    kernels::{
        attention::{DistanceTable, POSITIONS, Query, attend},
        pages::{Page, PagePool},
        rowwise::{Norm, add_norm, gelu as apply_gelu},
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

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index % 251) as f32 / 251.0 - 0.5).collect()
}

/// Pages of one layer that hold `keys` positions.
fn pages(keys: usize) -> Result<Vec<Page>> {
    let pool = PagePool::new(usize::MAX);
    let page = || {
        let mut page = pool.take(2 * WIDTH * POSITIONS)?;
        page.floats_mut()?.copy_from_slice(&numbers(2 * WIDTH * POSITIONS));
        Ok(page)
    };
    (0..keys.div_ceil(POSITIONS)).map(|_| page()).collect()
}

/// The last of `keys` positions attends to all of them, head by head on all threads, with the relative distances' term or
/// without.
pub(super) fn attention(
    keys: usize,
    distances: bool,
    peak_gflops: f64,
    plan: Plan,
    machine: &Machine,
) -> Result<Entry> {
    let (pages, table) = (pages(keys)?, DistanceTable::new(HEADS, HEAD_DIM, keys));
    table.cover(keys - 1, |range| numbers(range.len() * WIDTH));
    let (row, mut out) = (numbers(WIDTH), vec![0.0; WIDTH]);
    let times = timing::calls(plan.least(), &mut |_| {
        machine.pool.chunks(&mut out, HEAD_DIM, true, &|head, out| {
            let content = &row[head * HEAD_DIM..][..HEAD_DIM];
            let keys_at = head * HEAD_DIM * POSITIONS;
            let query = Query {
                pages: &pages,
                keys_at,
                values_at: WIDTH * POSITIONS + keys_at,
                position: keys - 1,
                head,
                content,
                distance: distances.then_some((content, &table)),
                scale: 0.125,
            };
            attend(machine.isa, &query, out);
        });
        black_box(&mut out);
    })?;
    // keys and values, and R of as many distances
    let products = if distances { 3 } else { 2 };
    let bytes = products * keys * WIDTH * size_of::<f32>();
    let ceilings = Ceilings { read: machine.read_bytes_per_second(bytes), peak_gflops };
    let work = Work { bytes, working_set: bytes, multiply_adds: products * keys * WIDTH };
    let kernel = if distances { "attention+distances" } else { "attention" };
    let mut entry = Entry::new(kernel, 1, times, machine).rated(work, ceilings);
    (entry.inputs, entry.outputs, entry.keys) = (Some(WIDTH), Some(WIDTH), Some(keys));
    Ok(entry)
}

/// Residual and LayerNorm of one row.
pub(super) fn norm(width: usize, plan: Plan, machine: &Machine) -> Result<Entry> {
    let (mut x, y) = (numbers(width), numbers(width));
    let parameters = Norm { weight: vec![1.0; width], bias: vec![0.0; width], eps: 1e-5 };
    let times = timing::calls(plan.least(), &mut |_| {
        add_norm(machine.isa, &machine.pool, &mut x, black_box(&y), &parameters);
        black_box(&mut x);
    })?;
    let mut entry = Entry::new("norm", 1, times, machine);
    (entry.inputs, entry.outputs) = (Some(width), Some(width));
    Ok(entry)
}

/// GELU of one row.
pub(super) fn gelu(width: usize, plan: Plan, machine: &Machine) -> Result<Entry> {
    // far to the right GELU changes nothing: smaller numbers would shrink from call to call until they are subnormal, and slow
    let mut x: Vec<f32> = numbers(width).into_iter().map(|x| x + 8.0).collect();
    let times = timing::calls(plan.least(), &mut |_| {
        apply_gelu(machine.isa, &machine.pool, &mut x, width);
        black_box(&mut x);
    })?;
    let mut entry = Entry::new("gelu", 1, times, machine);
    (entry.inputs, entry.outputs) = (Some(width), Some(width));
    Ok(entry)
}

/// As many empty tasks as there are threads, handed out and waited for.
pub(super) fn dispatch(plan: Plan, machine: &Machine) -> Result<Entry> {
    let tasks = machine.pool.threads();
    let nothing = |task: usize| {
        black_box(task);
    };
    let times = timing::each(plan.least(), &mut || machine.pool.run(tasks, &nothing))?;
    Ok(Entry::new("dispatch", tasks, times, machine))
}
