//! Naive implementations of efficient and LSH attention across a whole document, in f64 over all pairs.

use serde_json::Value;

type Vector = Vec<f64>;

/// Returns one head's attention output for each position. `rotations` has the shape `(rounds, width, buckets / 2)`.
pub(super) fn head(
    attention: &Value,
    queries: &[Vector],
    keys: &[Vector],
    values: &[Vector],
    rotations: &[f64],
) -> Vec<Vector> {
    match attention.get("lsh") {
        None => efficient(queries, keys, values),
        Some(lsh) => hashed(lsh, queries, values, rotations),
    }
}

fn softmax(scores: &[f64]) -> Vector {
    let top = scores.iter().copied().fold(f64::MIN, f64::max);
    let total: f64 = scores.iter().map(|score| (score - top).exp()).sum();
    scores.iter().map(|score| (score - top).exp() / total).collect()
}

/// Returns one head's softmax attention within blocks of `size` positions.
pub(super) fn blocks(size: usize, queries: &[Vector], keys: &[Vector], values: &[Vector]) -> Vec<Vector> {
    let output = |position: usize, query: &Vector| -> Vector {
        let start = position / size * size;
        let keys = keys.iter().skip(start).take(size);
        let values = values.iter().skip(start).take(size);
        let dot = |key: &Vector| key.iter().zip(query).map(|(k, q)| k * q).sum::<f64>() / (query.len() as f64).sqrt();
        let weights = softmax(&keys.map(dot).collect::<Vector>());
        let mut out = vec![0.0; query.len()];
        for (weight, value) in weights.iter().zip(values) {
            out.iter_mut().zip(value).for_each(|(out, x)| *out += weight * x);
        }
        out
    };
    queries.iter().enumerate().map(|(position, query)| output(position, query)).collect()
}

/// ρ_q(Q) (ρ_k(K)ᵀ V)
fn efficient(queries: &[Vector], keys: &[Vector], values: &[Vector]) -> Vec<Vector> {
    let width = queries[0].len();
    let columns: Vec<Vector> =
        (0..width).map(|element| softmax(&keys.iter().map(|key| key[element]).collect::<Vector>())).collect();
    let context =
        |from: usize, to: usize| -> f64 { columns[from].iter().zip(values).map(|(w, value)| w * value[to]).sum() };
    let context: Vec<Vector> = (0..width).map(|from| (0..width).map(|to| context(from, to)).collect()).collect();
    let output = |query: &Vector| -> Vector {
        let weights = softmax(query);
        (0..width).map(|to| weights.iter().zip(&context).map(|(w, row)| w * row[to]).sum()).collect()
    };
    queries.iter().map(output).collect()
}

fn hashed(lsh: &Value, vectors: &[Vector], values: &[Vector], rotations: &[f64]) -> Vec<Vector> {
    let number = |key: &str| lsh[key].as_u64().unwrap() as usize;
    let chunk = number("chunk");
    let half = number("buckets") / 2;
    let width = vectors[0].len();
    let dot = |a: &Vector, b: &Vector| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let unit = |x: &Vector| -> Vector {
        let scale = 1.0 / ((dot(x, x) / width as f64 + 1e-6).sqrt() * (width as f64).sqrt());
        x.iter().map(|x| x * scale).collect()
    };
    let keys: Vec<Vector> = vectors.iter().map(unit).collect();
    let mut attended: Vec<Vec<usize>> = vec![Vec::new(); vectors.len()];
    for rotation in rotations.chunks(width * half) {
        let bucket = |x: &Vector| -> usize {
            let turned =
                |element: usize| -> f64 { (0..width).map(|from| x[from] * rotation[from * half + element]).sum() };
            let all: Vector = (0..2 * half)
                .map(|element| if element < half { turned(element) } else { -turned(element - half) })
                .collect();
            (0..all.len()).rev().max_by(|&a, &b| all[a].total_cmp(&all[b])).unwrap()
        };
        let mut order: Vec<(usize, usize)> = vectors.iter().map(bucket).zip(0..).collect();
        order.sort_unstable();
        let chunks: Vec<Vec<usize>> =
            order.chunks(chunk).map(|part| part.iter().map(|entry| entry.1).collect()).collect();
        for (chunk, own) in chunks.iter().enumerate() {
            for &position in own {
                if chunks.len() > 1 {
                    attended[position].extend(&chunks[(chunk + chunks.len() - 1) % chunks.len()]);
                }
                attended[position].extend(own);
            }
        }
    }
    let output = |position: usize, attended: &Vec<usize>| -> Vector {
        let score = |&key: &usize| if key == position { -1e5 } else { dot(&vectors[position], &keys[key]) };
        let weights = softmax(&attended.iter().map(score).collect::<Vector>());
        (0..width)
            .map(|element| attended.iter().zip(&weights).map(|(&key, weight)| weight * values[key][element]).sum())
            .collect()
    };
    attended.iter().enumerate().map(|(position, attended)| output(position, attended)).collect()
}
