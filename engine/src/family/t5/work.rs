//! Working memory of one thread.

use crate::{
    family::parts::{
        encoder_hook::{EncoderHook, EncoderHookPoint},
        step::ChosenRows,
    },
    nn::{
        Position,
        attention::layer::Hook,
        t5::{T5Work, encoder::T5EncoderWork},
    },
};

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Working memory of the decoder's layers.
    pub(super) decoder: T5Work,
    pub(super) encoder: T5EncoderWork,
    /// The rows that the current step applies to.
    chosen: Vec<usize>,
    /// Sequence and position of each vector that the decoder processes.
    pub(super) positions: Vec<Position>,
    /// Sequence of each of these vectors, and the last vector of its document.
    pub(super) memory: Vec<Position>,
    /// The decoder's vectors, (positions, D), or one page of the encoder's output, (vectors, D).
    pub(super) x: Vec<f32>,
    /// The head's input: (wanted, D)
    pub(super) wanted: Vec<f32>,
    /// (wanted, V)
    pub(super) logits: Vec<f32>,
    /// Receives the encoder's intermediate results in golden tests; `None` in servers.
    pub hook: Option<EncoderHook>,
}

impl Work {
    /// Sends the output of every decoder layer to `hook` from now on.
    pub fn watch_decoder(&mut self, hook: Hook) {
        self.decoder.hook = Some(hook);
    }

    pub(super) fn show(&mut self, point: EncoderHookPoint, first: usize, x: &[f32]) {
        if let Some(hook) = &mut self.hook {
            hook(point, first, x);
        }
    }
}

impl ChosenRows for Work {
    fn chosen(&mut self) -> &mut Vec<usize> {
        &mut self.chosen
    }
}
