//! Choosing symbols: the [`sampler`], stop strings ([`stops`]) and reported log-probabilities ([`logprobs`]).

pub mod logprobs;
pub mod sampler;
pub mod stops;
