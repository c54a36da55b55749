//! Efficient attention (Shen et al. 2021, §3.2): a softmax over the numbers of each query, and a softmax over all keys for each
//! of their numbers. Keys and values reduce to one matrix, (head_dim, head_dim), however many there are.
//!
//! A head's store holds, for each number of a key, the largest value seen and the sum of exponentials, (head_dim) each, and
//! then the matrix. Neither queries nor keys are scaled, as published.

pub(super) fn floats(dim: usize) -> usize {
    dim * (dim + 2)
}

pub(super) fn reset(dim: usize, store: &mut [f32]) {
    let (maxima, rest) = store.split_at_mut(dim);
    maxima.fill(f32::NEG_INFINITY);
    rest.fill(0.0);
}

/// Adds a key and its value, (head_dim) each.
pub(super) fn write(store: &mut [f32], key: &[f32], value: &[f32]) {
    let (maxima, rest) = store.split_at_mut(key.len());
    let (sums, matrix) = rest.split_at_mut(key.len());
    let rows = maxima.iter_mut().zip(sums).zip(matrix.chunks_exact_mut(key.len())).zip(key);
    for (((max, sum), row), &number) in rows {
        if number > *max {
            let shrink = (*max - number).exp();
            *max = number;
            *sum *= shrink;
            row.iter_mut().for_each(|x| *x *= shrink);
        }
        // A NaN in a key makes the whole row NaN.
        let weight = (number - *max).exp();
        *sum += weight;
        row.iter_mut().zip(value).for_each(|(x, value)| *x += weight * value);
    }
}

/// Divides the matrix's rows by their sums, after the last key.
pub(super) fn finish(dim: usize, store: &mut [f32]) {
    let (sums, matrix) = store[dim..].split_at_mut(dim);
    for (sum, row) in sums.iter().zip(matrix.chunks_exact_mut(dim)) {
        row.iter_mut().for_each(|x| *x /= sum);
    }
}

/// Writes to `out` the matrix's rows, weighted by the softmax over the query's numbers; all (head_dim).
pub(super) fn attend(store: &[f32], query: &[f32], out: &mut [f32]) {
    let dim = query.len();
    let max = query.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    out.fill(0.0);
    for (number, row) in query.iter().zip(store[2 * dim..].chunks_exact(dim)) {
        let weight = (number - max).exp();
        total += weight;
        out.iter_mut().zip(row).for_each(|(out, x)| *out += weight * x);
    }
    out.iter_mut().for_each(|x| *x /= total);
}
