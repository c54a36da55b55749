//! Arithmetic: packed matrices, attention over pages, row-wise functions, the thread pool. Knows no model.
//!
//! The promise every kernel here keeps: **one order of summation per row**. What a row's numbers are never depends on how
//! many rows are computed beside it, on their order, or on the number of threads; so a step, a batch, a chunk and a prefill
//! give the same bits. Threads and register tiles share out *outputs*, never a sum.
//!
//! Each kernel body is written once and compiled for each instruction set ([`Isa`]): AVX2 with FMA, the same with AVX-512's
//! products of bytes, and the build's baseline; the widest that the processor has is taken at run time. The baseline rounds
//! floats differently from the other two; one machine always takes the same one. This is the only room with `unsafe`; every block says why it is sound.

#![allow(unsafe_code, reason = "the one room that has it")]

pub mod attention;
mod disjoint;
pub mod distribution;
mod dtype;
#[cfg(test)]
mod exact_tests;
mod isa;
pub mod linear;
pub mod memory;
pub mod pages;
pub mod peak;
mod pool;
pub mod rowwise;

pub use dtype::Dtype;
pub use isa::Isa;
pub use pool::ThreadPool;

use std::sync::Arc;

/// Outputs of one group of a matrix panel; sums of a row run in as many lanes.
pub const LANES: usize = 16;

/// What kernels run on.
#[derive(Debug, Clone)]
pub struct Compute {
    /// Instruction set.
    pub isa: Isa,
    /// Threads.
    pub pool: Arc<ThreadPool>,
}
