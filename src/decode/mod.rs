//! The contract between models and engine, and one sequence's life.
//!
//! Reading order: [`contract`] (what a model is to everyone else; [`cost`], what its work costs;
//! [`document`], what one that reads documents is), [`gather`] (which rows of a batch run their middle stack together),
//! [`options`] (what a request may ask for; [`usage`], what it has taken), [`session`] (one request from prompt to last
//! character), which is made of given symbols (`known`) and sampled ones (`generation`), and these of [`sampler`],
//! [`stops`], [`logprobs`] and [`random`]; [`trace`] is how symbols are fed with their boundaries, [`tail`] what is kept of a
//! text, and [`origin`] how far back a state needs it. For summaries: [`summary`]
//! (what may be asked for), [`beam`] (which texts are followed) and [`spans`] (what a pooling has kept).

pub mod beam;
pub mod contract;
pub mod cost;
pub mod document;
pub mod evaluate;
pub mod gather;
mod generation;
mod known;
pub mod logprobs;
pub mod options;
pub mod origin;
pub mod random;
pub mod sampler;
pub mod session;
pub mod spans;
pub mod stops;
pub mod summary;
pub mod tail;
pub mod trace;
pub mod usage;
