//! Compute kernels of [weir](https://docs.rs/weir), independent of models. The only package with `unsafe`.
//!
//! Reading order:
//!
//! - [`error`]: the closed list of error codes, which all packages share
//! - [`sync`]: locks, atomics and threads, which the concurrency tests replace
//! - [`memory`]: allocations with a limit; the processor's caches, and the peak of the process
//! - `dtype`: element types of weights and caches; `isa`: instruction sets and their vectors; `pool`: the thread pool
//! - [`linear`]: matrix products, and the formats of weights
//! - [`pages`]: the pool of cache pages; [`attention`]: attention of rows over pages
//! - [`rowwise`], [`distribution`], [`ssm`]: norms and activations, functions of logits, state space layers
//!
//! Every kernel guarantees **one order of summation per row**. The values of a row never depend on the other rows of a batch, on
//! their order, or on the number of threads. A step, a batch, a chunk and a prefill therefore give the same bits. Threads and
//! register tiles divide *outputs*, never a sum. Tests compare each kernel with a naive implementation.
//!
//! Each kernel body is written once and compiled for each instruction set ([`Isa`]): AVX2 with FMA, AVX-512 with VNNI, and the
//! baseline of the build. AMX adds one kernel to AVX-512: int8 products of several rows. The widest set that the processor and the
//! system support is selected at run time. The baseline may round floats differently from the others.
#![allow(unsafe_code, reason = "the only package that needs it: every block states why it is sound")]

pub mod attention;
pub mod distribution;
mod dtype;
pub mod error;
#[cfg(test)]
mod exact_tests;
mod isa;
pub mod linear;
pub mod memory;
pub mod pages;
mod pool;
pub mod rowwise;
pub mod ssm;
pub mod sync;
#[cfg(test)]
mod testing;

pub use dtype::{CacheDtype, Dtype};
pub use isa::Isa;
pub use pool::ThreadPool;
use std::sync::Arc;

/// Lanes of a sum over a row, and outputs of one group of a matrix panel.
pub const LANES: usize = isa::WIDTH;

/// The instruction set and the threads that kernels run on.
#[derive(Debug, Clone)]
pub struct Compute {
    /// Instruction set.
    pub isa: Isa,
    /// Thread pool.
    pub pool: Arc<ThreadPool>,
}
