//! Runs one session without an engine and without drafts.

use super::{
    contract::{Model, SequenceRow, advance},
    options::{EmittedSymbol, FinishReason},
    session::{Session, SessionProgress},
    usage::Usage,
};
use crate::error::Result;

impl Session {
    /// Runs the session alone and passes symbols to `emit` as they come. Returns the first error of a step or of `emit`.
    pub fn run(
        mut self,
        model: &dyn Model,
        chunk: usize,
        emit: &mut dyn FnMut(Vec<EmittedSymbol>) -> Result<()>,
    ) -> Result<(FinishReason, Usage)> {
        let mut row = SequenceRow::new(model.begin(self.boundaries().clone())?);
        let mut scratch = model.scratch();
        loop {
            self.feed(&mut row, chunk);
            advance(model, std::slice::from_mut(&mut row), &[0], &mut scratch)?;
            let progress = self.absorb(&mut row)?;
            if self.has_output() {
                emit(self.take_output())?;
            }
            if let SessionProgress::Finished(reason) = progress {
                return Ok((reason, self.usage()));
            }
        }
    }
}
