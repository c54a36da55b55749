//! What every measurement of a model begins with.

use super::machine::Machine;
use crate::decode::contract::Card;
use serde::Serialize;

/// The model, and what it runs on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Head {
    /// The model's name.
    pub model: String,
    /// Its family.
    pub family: &'static str,
    /// What it computes in.
    pub dtype: &'static str,
    /// Threads that shared each step.
    pub threads: usize,
    /// The kernels' instruction set.
    pub isa: &'static str,
}

impl Head {
    /// Of a model on a machine.
    pub fn new(card: &Card, machine: &Machine) -> Self {
        Self {
            model: card.name.clone(),
            family: card.family,
            dtype: card.dtype,
            threads: machine.threads(),
            isa: machine.compute.isa.name(),
        }
    }
}
