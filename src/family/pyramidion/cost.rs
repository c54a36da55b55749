//! What reading a document costs, from the model's shape alone.

use super::model::Pyramidion;

impl Pyramidion {
    /// Multiply-adds of encoding a document: matrix products and attention of the encoder, keys and values for the decoder. What
    /// pooling does is not worth counting; what is padding alone costs nothing.
    pub(super) fn reading(&self, tokens: usize) -> usize {
        let Some(first) = self.plan.segments.first() else { return 0 };
        let mut rows = match first.block {
            Some(block) if self.plan.padded => tokens.next_multiple_of(block.min(first.length)).min(first.length),
            _ => tokens.min(first.length),
        };
        let mut sum = 0;
        for segment in &self.plan.segments {
            for layer in segment.first..segment.end {
                let meetings = match segment.block {
                    Some(block) => {
                        rows / block * self.encoder.attention(layer, block).multiply_adds(block)
                            + self.encoder.attention(layer, rows % block).multiply_adds(rows % block)
                    }
                    None => self.encoder.attention(layer, rows).multiply_adds(rows),
                };
                sum += meetings + rows * self.encoder.products(layer);
            }
            if let Some(factor) = segment.factor {
                rows = if self.plan.padded { segment.length / factor } else { rows.div_ceil(factor) };
            }
        }
        let vectors = if self.plan.upsamples { tokens.min(first.length) } else { rows };
        let memory = self.decoder.stack.layers.iter().filter_map(|layer| layer.cross.as_ref());
        sum + vectors * memory.map(|cross| cross.memory.inputs() * cross.memory.outputs()).sum::<usize>()
    }
}
