//! Working memory of one thread.

pub use crate::family::parts::encoder_hook::{EncoderHook, EncoderHookPoint};
use crate::{
    family::decoder::work,
    nn::{Position, attention::encoder::EncoderWork},
};

/// Working memory of one thread.
#[derive(Default)]
pub struct Work {
    /// Working memory of the decoder's steps.
    pub(super) decoder: work::Work,
    pub(super) encoder: EncoderWork,
    /// One page of the encoder's output: (vectors, D)
    pub(super) x: Vec<f32>,
    /// Keys and values of that page in one decoder layer: (vectors, 2·I)
    pub(super) projected: Vec<f32>,
    /// Tokens that are embedded, and their positions.
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<Position>,
    /// Receives intermediate results in golden tests; `None` in servers.
    pub hook: Option<EncoderHook>,
}

impl Work {
    pub(super) fn show(&mut self, point: EncoderHookPoint, first: usize, x: &[f32]) {
        if let Some(hook) = &mut self.hook {
            hook(point, first, x);
        }
    }
}
