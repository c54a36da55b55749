//! The mean of a segment's hidden vectors, summed in the order of the symbols.

/// `out` = Σ hidden / n.
pub fn pool<'a>(hidden: impl Iterator<Item = &'a [f32]>, out: &mut [f32]) {
    out.fill(0.0);
    let mut count = 0f32;
    for hidden in hidden {
        count += 1.0;
        for (out, hidden) in out.iter_mut().zip(hidden) {
            *out += hidden;
        }
    }
    for out in out {
        *out /= count;
    }
}

/// `out` = sum / n, of a sum that was added up in the order of the symbols: the same bits.
pub fn of_sum(sum: &[f32], count: usize, out: &mut [f32]) {
    let count = count as f32;
    for (out, sum) in out.iter_mut().zip(sum) {
        *out = sum / count;
    }
}
