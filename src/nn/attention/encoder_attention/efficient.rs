//! Efficient attention (Shen et al. 2021, §3.2): softmax over a query's own numbers, and over all keys' for each of their numbers;
//! of keys and values there is one matrix, (head_dim, head_dim), however many they are.
//!
//! A head's store: the largest number so far for each of a key's numbers, the sums of their exponentials, and the matrix. Neither
//! queries nor keys are scaled, as published.

/// Numbers of a head's store.
pub(super) fn numbers(dim: usize) -> usize {
    dim * (dim + 2)
}

/// Nothing has come yet.
pub(super) fn open(dim: usize, store: &mut [f32]) {
    let (tops, rest) = store.split_at_mut(dim);
    tops.fill(f32::NEG_INFINITY);
    rest.fill(0.0);
}

/// A key and its value, (head_dim) each.
pub(super) fn write(store: &mut [f32], key: &[f32], value: &[f32]) {
    let (tops, rest) = store.split_at_mut(key.len());
    let (sums, matrix) = rest.split_at_mut(key.len());
    let positions = tops.iter_mut().zip(sums).zip(matrix.chunks_exact_mut(key.len())).zip(key);
    for (((top, sum), row), &number) in positions {
        if number > *top {
            let shrink = (*top - number).exp();
            *top = number;
            *sum *= shrink;
            row.iter_mut().for_each(|x| *x *= shrink);
        }
        // a number that is none makes all of them none
        let weight = (number - *top).exp();
        *sum += weight;
        row.iter_mut().zip(value).for_each(|(x, value)| *x += weight * value);
    }
}

/// All keys have come: the matrix's rows become means.
pub(super) fn close(dim: usize, store: &mut [f32]) {
    let (sums, matrix) = store[dim..].split_at_mut(dim);
    for (sum, row) in sums.iter().zip(matrix.chunks_exact_mut(dim)) {
        row.iter_mut().for_each(|x| *x /= sum);
    }
}

/// `out` = the rows of the matrix, weighted by the softmax of the query's numbers; all (head_dim).
pub(super) fn attend(store: &[f32], query: &[f32], out: &mut [f32]) {
    let dim = query.len();
    let top = query.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    out.fill(0.0);
    for (number, row) in query.iter().zip(store[2 * dim..].chunks_exact(dim)) {
        let weight = (number - top).exp();
        total += weight;
        out.iter_mut().zip(row).for_each(|(out, x)| *out += weight * x);
    }
    out.iter_mut().for_each(|x| *x /= total);
}
