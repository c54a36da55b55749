//! Complete models, one paper a folder; their checkpoints; and converters from upstream formats.
//!
//! A family reads the `architecture` of a [`Config`](checkpoint::Config) into a [`Blueprint`]: the tensors that there must be,
//! and how to build a [`Model`](crate::decode::contract::Model) from them. [`load`] has the table of families. Loading,
//! `weir init`, `weir inspect` and the converters know families through these two only.

mod blueprint;
pub mod checkpoint;
pub mod convert;
pub mod cost;
pub mod decoder;
pub mod hourglass;
pub mod init;
pub mod load;
pub mod lslm;
pub mod parts;
pub mod pyramidion;
pub mod settings;

pub use blueprint::{Blueprint, Parts, Reader};
pub use checkpoint::{Init, TensorSpec};
