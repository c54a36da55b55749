//! Random weights whose chunks are as long as those of trained models.
//!
//! With independent random weights, about every second position begins a chunk. The published models were trained towards chunks
//! of about six bytes with one level, and of three bytes and three chunks with two. So that benchmarks run the inner stages as
//! often, `weir init` lets the two outermost routers cut English at fixed letters. The embedding marks these letters in a column
//! for each level, and has one column that is the same for all symbols. Residual streams keep these columns, the router's query
//! reads the latter, and its key the column of its level. All other numbers are random, as are the routers of deeper levels.

use super::config::HnetBlueprint;
use crate::{
    family::checkpoint::{Column, Init, TensorSpec},
    text::Vocabulary,
};

/// Letters with which a chunk begins, by level, in models with one level and with more.
const ONE_LEVEL: &[&str] = &[" "];
const SEVERAL_LEVELS: &[&str] = &[" tol", "tl"];
/// Size of the embedding's marks, well above what the layers of an encoder add to them.
const MARK: f32 = 16.0;
/// Standard deviation of the embedding's other numbers.
const EMBEDDING: f32 = 1.0;
/// Norm of a router's column that reads a mark, well above that of its random product.
const PULL: f32 = 20.0;
/// Standard deviation of a router's other numbers.
const ROUTER: f32 = 0.02;

/// Returns for each level the symbols with which its chunks begin. Empty if the vocabulary or the embedding cannot mark them.
pub(super) fn beginnings(vocabulary: &Vocabulary, levels: usize, dim: usize) -> Vec<Vec<u32>> {
    let letters = if levels == 1 { ONE_LEVEL } else { SEVERAL_LEVELS };
    let ids = |letters: &&str| letters.chars().map(|letter| vocabulary.id_of(letter)).collect::<Option<Vec<u32>>>();
    let all: Option<Vec<_>> = letters.iter().map(ids).collect();
    all.filter(|all| all.len() < dim).unwrap_or_default()
}

impl HnetBlueprint {
    /// Returns the embedding with the marks of the symbols that begin chunks.
    pub(super) fn embedding(&self) -> TensorSpec {
        let shape = vec![self.symbols, self.architecture.stages[0].dim];
        let sign = |begins: bool| if begins { -MARK } else { MARK };
        let level = |begin: &Vec<u32>| (0..self.symbols as u32).map(|symbol| sign(begin.contains(&symbol))).collect();
        let mut columns: Vec<Vec<f32>> = self.beginnings.iter().map(level).collect();
        columns.push(vec![MARK; self.symbols]);
        let columns = (0..).zip(columns).map(|(index, values)| Column { index, values }).collect();
        TensorSpec { name: "embedding.weight".into(), shape, init: Init::Columns(EMBEDDING, columns), trained: true }
    }

    /// Returns the query of a level's router, which reads the column that is the same for all symbols.
    pub(super) fn router_query(&self, level: usize) -> TensorSpec {
        self.router("query", level, self.beginnings.len())
    }

    /// Returns the key of a level's router, which reads the marks of its level.
    pub(super) fn router_key(&self, level: usize) -> TensorSpec {
        self.router("key", level, level)
    }

    fn router(&self, name: &str, level: usize, index: usize) -> TensorSpec {
        let dim = self.architecture.stages[level].dim;
        let reads = level < self.beginnings.len();
        let column = || Column { index, values: vec![PULL / (dim as f32).sqrt(); dim] };
        let name = format!("stages.{level}.router.{name}.weight");
        let init = Init::Columns(ROUTER, reads.then(column).into_iter().collect());
        TensorSpec { name, shape: vec![dim, dim], init, trained: true }
    }
}
