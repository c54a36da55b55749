//! Compute kernels, independent of models: matrix products, attention over pages, row-wise functions, the thread pool.
//!
//! Every kernel guarantees **one order of summation per row**. The numbers of a row never depend on the other rows of a
//! batch, on their order, or on the number of threads. A step, a batch, a chunk and a prefill therefore give the same bits.
//! Threads and register tiles divide *outputs*, never a sum. Tests compare each kernel with a naive implementation.
//!
//! Each kernel body is written once and compiled for each instruction set ([`Isa`]): AVX2 with FMA, AVX-512 with VNNI, and
//! the baseline of the build. AMX adds one kernel to AVX-512: int8 products of several rows. The widest set that the
//! processor and the system support is selected at run time. The baseline may round floats differently from the others. This is the only
//! module with `unsafe`; every block states why it is sound. It therefore also has [`memory`], [`heap`] and [`environment`].

#![allow(unsafe_code, reason = "the only module that needs it")]

pub mod attention;
mod disjoint;
pub mod distribution;
mod dtype;
pub mod environment;
#[cfg(test)]
mod exact_tests;
pub mod heap;
mod isa;
pub mod linear;
pub mod memory;
pub mod pages;
pub mod peak;
mod pool;
pub mod rowwise;
pub mod ssm;
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
