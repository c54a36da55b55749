//! H-Net: dynamic chunking (Hwang, Wang, Gu 2025, arXiv 2507.07955), with any number of stages.
//!
//! Read from goombalab/hnet at commit 3673fe1: `hnet/models/hnet.py` (stages), `hnet/modules/dc.py` (router, chunking, moving
//! average), `hnet/modules/block.py` (layers). Every mode computes what its recurrences define, in f32; the official bulk form
//! rounds the moving average to bf16.
//!
//! Each stage but the innermost: encoder → router → the vectors at which chunks begin → next stage → moving average + residual →
//! decoder. A segment of the contract is a chunk of the outermost router, and it closes with the *first* symbol of the chunk:
//! that symbol's vector is the chunk's. Start with [`model`]: the weights, and the forward pass through `stages`.
//! [`config`] describes an architecture, `load` its tensors, `init` those of `weir init`; [`state`] is one sequence, which `snapshots` make rewindable.

pub mod config;
mod init;
pub(super) mod load;
pub mod model;
mod snapshots;
mod stages;
pub mod state;
mod work;
