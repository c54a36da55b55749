//! Embeddings of hashed n-grams (Byte Latent Transformer, Pagnoni et al. 2024, arXiv 2412.09871, §3.2.1).
//!
//! In addition to its own embedding, a symbol gets one row of each table: that of the n-gram which ends with it. A hash chooses the
//! row, so n-grams share rows. Hot path: no allocation.

use super::recent::RecentSymbols;
use crate::{
    error::{Error, Result},
    family::checkpoint::Weights,
    nn::ConfigError,
};
use serde::Deserialize;

/// `ngrams` of an architecture.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NgramConfig {
    /// Each n, in increasing order; there is one table for each.
    pub sizes: Vec<usize>,
    /// Rows of each table.
    pub rows: usize,
}

/// Maximum tables.
const MAX_TABLES: usize = 8;
const MIN_SIZE: usize = 2;
const MAX_SIZE: usize = 16;
const MAX_ROWS: usize = 1 << 24;

impl NgramConfig {
    /// Checks every bound. Fails if a number is out of bounds or the sizes do not increase.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_TABLES).contains(&self.sizes.len()) {
            return Err(ConfigError::new("sizes", format!("1 to {MAX_TABLES} sizes"), self.sizes.len()));
        }
        if let Some(size) = self.sizes.iter().find(|size| !(MIN_SIZE..=MAX_SIZE).contains(*size)) {
            return Err(ConfigError::new("sizes", format!("sizes from {MIN_SIZE} to {MAX_SIZE}"), size));
        }
        if !self.sizes.is_sorted_by(|a, b| a < b) {
            return Err(ConfigError::new("sizes", "increasing sizes", format!("{:?}", self.sizes)));
        }
        if !(1..=MAX_ROWS).contains(&self.rows) {
            return Err(ConfigError::new("rows", format!("1 to {MAX_ROWS}"), self.rows));
        }
        Ok(())
    }

    /// Returns the names of the tables' tensors, (rows, D) each.
    pub(super) fn tensors(&self) -> impl Iterator<Item = String> {
        self.sizes.iter().map(|size| format!("ngrams.{size}.weight"))
    }

    /// Returns a short description for people.
    pub(super) fn describe(&self) -> String {
        let sizes: Vec<_> = self.sizes.iter().map(usize::to_string).collect();
        format!("n-grams of {} × {} rows", sizes.join(", "), self.rows)
    }
}

/// The tables. D = width.
pub(super) struct Ngrams {
    rows: usize,
    /// The tables in the order of their n.
    tables: Vec<Table>,
}

struct Table {
    /// n
    size: usize,
    /// (rows, D)
    weight: Vec<f32>,
}

/// The hash multiplies by this number, modulo the prime 2³¹ − 1.
const FACTOR: u64 = 1_000_003;
const PRIME: u64 = (1 << 31) - 1;

impl Ngrams {
    /// Takes the tables from checked weights. Fails if one is missing.
    pub(super) fn load(config: &NgramConfig, weights: &mut Weights) -> Result<Self> {
        let table = |(&size, name): (&usize, String)| Ok(Table { size, weight: weights.take(&name)? });
        let tables: Result<Vec<_>> = config.sizes.iter().zip(config.tensors()).map(table).collect();
        Ok(Self { rows: config.rows, tables: tables? })
    }

    /// The largest n.
    pub(super) fn largest(&self) -> usize {
        self.tables.last().map_or(0, |table| table.size)
    }

    /// Adds to `x` (D), the embedding of the symbol at `position`, the rows of the n-grams that end there. Fails if `recent` lacks
    /// the symbol.
    pub(super) fn add(&self, recent: &RecentSymbols, position: usize, x: &mut [f32]) -> Result<()> {
        let mut newest_first = recent.newest_first(position).ok_or_else(|| missing(position))?;
        let mut chosen: [&[f32]; MAX_TABLES] = [&[]; MAX_TABLES];
        let mut hash = 0;
        let mut read = 0;
        for (chosen, table) in chosen.iter_mut().zip(&self.tables) {
            for id in newest_first.by_ref().take(table.size - read) {
                hash = (hash * FACTOR + u64::from(id) + 1) % PRIME;
            }
            read = table.size;
            let row = hash as usize % self.rows;
            *chosen = &table.weight[row * x.len()..][..x.len()]; // (D)
        }
        let chosen = &chosen[..self.tables.len()];
        // as in training: the sum of the rows is added to the embedding
        for (index, x) in x.iter_mut().enumerate() {
            *x += chosen.iter().map(|row| row[index]).sum::<f32>();
        }
        Ok(())
    }
}

fn missing(position: usize) -> Error {
    Error::Internal(format!("the symbol at position {position} is not kept"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of width 1 whose row r of table t is 1000·t + r.
    fn numbered(sizes: &[usize], rows: usize) -> Ngrams {
        let weight = |t: usize| (0..rows).map(|row| (1000 * t + row) as f32).collect();
        let tables = sizes.iter().enumerate().map(|(t, &size)| Table { size, weight: weight(t) }).collect();
        Ngrams { rows, tables }
    }

    #[test]
    fn rows_follow_the_definition() {
        let sizes = [2, 3, 7];
        let rows = 101;
        let text: Vec<u32> = (0..40).map(|i| i * i % 256).collect();
        let row = |position: usize, size: usize| {
            let id = |back: usize| position.checked_sub(back).map_or(0, |at| text[at]);
            (0..size).fold(0u128, |hash, back| (hash * 1_000_003 + u128::from(id(back)) + 1) % 2_147_483_647) % 101
        };
        let ngrams = numbered(&sizes, rows);
        let mut recent = RecentSymbols::new(ngrams.largest());
        recent.extend(&text);
        for position in 0..text.len() {
            let mut x = [0.25];
            ngrams.add(&recent, position, &mut x).unwrap();
            let expected: u128 =
                sizes.iter().enumerate().map(|(t, &size)| 1000 * t as u128 + row(position, size)).sum();
            assert_eq!(x, [0.25 + expected as f32], "{position}");
        }
        assert!(ngrams.add(&recent, text.len(), &mut [0.0]).is_err());
    }

    #[test]
    fn a_known_ngram_has_its_row() {
        // "abc", newest first: c = 99, b = 98, a = 97
        let hash = ((100u64 * 1_000_003 + 99) * 1_000_003 + 98) % 2_147_483_647;
        let mut recent = RecentSymbols::new(3);
        recent.extend(&[97, 98, 99]);
        let mut x = [0.0];
        numbered(&[3], 3840).add(&recent, 2, &mut x).unwrap();
        assert_eq!(x, [(hash % 3840) as f32]);
    }

    #[test]
    fn validate_rejects_what_is_out_of_bounds() {
        let valid = |sizes: &[usize], rows| NgramConfig { sizes: sizes.to_vec(), rows }.validate().is_ok();
        assert!(valid(&[3, 4, 5], 3840) && valid(&[2], 1) && valid(&[2, 3, 4, 5, 6, 7, 8, 16], 1 << 24));
        for sizes in [&[][..], &[1], &[17], &[3, 3], &[4, 3], &[2, 3, 4, 5, 6, 7, 8, 9, 10]] {
            assert!(!valid(sizes, 10), "{sizes:?}");
        }
        assert!(!valid(&[3], 0) && !valid(&[3], (1 << 24) + 1));
    }
}
