//! What an encoder does with a document, layer by layer: lengths, blocks, poolings.

use super::{
    attention::Attention,
    config::{Architecture, Pooling},
};

/// The most vectors of one block of work, unless a block of attention has more.
pub(super) const UNIT: usize = 512;

/// Layers between two poolings, and the pooling behind them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// The first layer.
    pub(super) first: usize,
    /// One past the last.
    pub(super) end: usize,
    /// Vectors of the longest document that come in.
    pub(super) length: usize,
    /// Vectors that attend to each other; none if all do.
    pub(super) block: Option<usize>,
    /// Of how many vectors the pooling behind the last layer makes one; none if there is no pooling.
    pub(super) factor: Option<usize>,
}

/// What an encoder does with a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// In order; the last one has no layers if the last layer's pooling is the last thing.
    pub(super) segments: Vec<Segment>,
    pub(super) padded: bool,
    /// Whether what pads a document is hidden from what does not: where nothing blocks or pools.
    pub(super) hides_padding: bool,
    /// Whether there must be no padding within a document.
    pub(super) needs_tokens: bool,
    /// Whether the decoder attends to as many vectors as came in, whatever was pooled.
    pub(super) upsamples: bool,
}

/// What is wrong with an architecture.
#[derive(Debug)]
pub(super) struct PlanError {
    pub(super) key: String,
    pub(super) expected: String,
    pub(super) found: String,
}

impl PlanError {
    pub(super) fn new(key: impl Into<String>, expected: impl Into<String>, found: impl ToString) -> Self {
        Self { key: key.into(), expected: expected.into(), found: found.to_string() }
    }
}

impl Plan {
    /// # Errors
    /// The length that no rule leads to, with the rule.
    pub(super) fn of(a: &Architecture) -> Result<Self, PlanError> {
        let (mut segments, mut first, mut length) = (Vec::new(), 0, a.source_length);
        // where only some heads attend to blocks, a layer needs the whole document
        let block = a.block.filter(|_| a.attention == Attention::Softmax);
        for (layer, kept) in lengths(a)? {
            let key = || format!("pooling.lengths.{layer}");
            if kept == length {
                return Err(PlanError::new(key(), format!("fewer than the {length} vectors that come in"), kept));
            }
            if let Some(kind) = a.pooling.kind() {
                kind.pooler(length, kept).map_err(|rule| PlanError::new(key(), rule, kept))?;
            }
            segments.push(Segment { first, end: layer + 1, length, block, factor: Some(length / kept) });
            (first, length) = (layer + 1, kept);
        }
        segments.push(Segment { first, end: a.encoder_layers, length, block, factor: None });
        let upsamples = matches!(a.pooling, Pooling::Funnel { .. });
        let plan = Self {
            segments,
            padded: a.padded,
            hides_padding: block.is_none() && a.pooling == Pooling::None {},
            needs_tokens: a.attention != Attention::Softmax,
            upsamples,
        };
        // where what is dropped would be missed: behind the last layer, or wherever each place is to get its window's vector
        let whole = |segment: &Segment| match segment.block.map(|block| block.min(segment.length)) {
            Some(block) if a.padded && segment.first < segment.end => segment.length.is_multiple_of(block),
            _ => true,
        };
        let missed = |segment: &&Segment| (upsamples || segment.factor.is_none()) && !whole(segment);
        match plan.segments.iter().find(missed) {
            Some(segment) => {
                let expected = format!("a divisor of {}: what whole blocks leave over is dropped", segment.length);
                Err(PlanError::new("block", expected, block.unwrap_or(0)))
            }
            None => Ok(plan),
        }
    }

    /// Layers behind which there is a pooling.
    pub(super) fn pooled_layers(&self) -> impl Iterator<Item = usize> {
        self.segments.iter().filter(|segment| segment.factor.is_some()).map(|segment| segment.end - 1)
    }

    /// Vectors of the longest document, before and after each pooling.
    pub(super) fn lengths(&self) -> Vec<usize> {
        self.segments.iter().map(|segment| segment.length).collect()
    }

    /// Vectors of the longest document that the decoder attends to.
    pub(super) fn last_length(&self) -> usize {
        let end = if self.upsamples { self.segments.first() } else { self.segments.last() };
        end.map_or(0, |segment| segment.length)
    }

    /// The most vectors of one block of work.
    pub(super) fn unit(&self) -> usize {
        self.segments.iter().map(Segment::span).max().unwrap_or(UNIT)
    }
}

impl Segment {
    /// Vectors that go through a layer at a time: whole blocks.
    pub(super) fn span(&self) -> usize {
        match self.block {
            Some(block) => {
                let block = block.min(self.length);
                block * (UNIT / block).max(1)
            }
            None => UNIT,
        }
    }
}

/// Vectors after a layer, by the layer, in order.
fn lengths(a: &Architecture) -> Result<Vec<(usize, usize)>, PlanError> {
    let Some(lengths) = a.pooling.lengths() else { return Ok(Vec::new()) };
    if lengths.is_empty() {
        return Err(PlanError::new("pooling.lengths", "at least one layer", "none"));
    }
    let layer = |key: &String| {
        let number: Option<usize> = key.parse().ok().filter(|layer| *layer < a.encoder_layers);
        number.filter(|number| number.to_string() == *key).ok_or_else(|| {
            PlanError::new("pooling.lengths", format!("layers from 0 to {}", a.encoder_layers - 1), format!("{key:?}"))
        })
    };
    let mut all = Vec::new();
    for (key, &kept) in lengths {
        all.push((layer(key)?, kept));
    }
    all.sort_unstable();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn architecture(change: &str) -> Architecture {
        let base = r#"{"encoder_layers": 6, "decoder_layers": 1, "dim": 8, "heads": 2, "feed_forward": 8, "activation": "relu",
            "layer_norm_eps": 1e-5, "pre_norm": false, "source_length": 8192, "target_length": 64, "decoder_positions": false,"#;
        serde_json::from_str(&format!("{base} {change}}}")).unwrap()
    }

    fn halving(lengths: &str, block: &str) -> Result<Plan, PlanError> {
        let pooling =
            format!(r#"{{"kind": "successive-halving", "lengths": {lengths}, "flip_right": true, "sort_back": true}}"#);
        Plan::of(&architecture(&format!(r#""block": {block}, "pooling": {pooling}"#)))
    }

    #[test]
    fn the_published_deep_model() {
        let plan = halving(r#"{"2": 2048, "3": 512}"#, "512").unwrap();
        assert_eq!(plan.lengths(), [8192, 2048, 512]);
        let layers: Vec<_> = plan.segments.iter().map(|segment| (segment.first, segment.end, segment.factor)).collect();
        assert_eq!(layers, [(0, 3, Some(4)), (3, 4, Some(4)), (4, 6, None)]);
        assert!(plan.segments.iter().all(|segment| segment.span() == 512) && !plan.hides_padding);
        // a pooling behind the last layer leaves an end without layers
        let plan = halving(r#"{"5": 512}"#, "100").unwrap();
        assert_eq!((plan.segments.len(), plan.segments[1].first, plan.segments[1].end), (2, 6, 6));
        assert_eq!(plan.segments[0].span(), 500);
        let vanilla = Plan::of(&architecture(r#""block": null, "pooling": {"kind": "none"}"#)).unwrap();
        assert!(vanilla.hides_padding && vanilla.segments.len() == 1);
    }

    #[test]
    fn lengths_that_cannot_be_are_named_with_the_rule() {
        for (lengths, block, key, found) in [
            (r#"{"2": 3000}"#, "512", "pooling.lengths.2", "3000"),
            (r#"{"2": 0}"#, "512", "pooling.lengths.2", "0"),
            (r#"{"2": 8192}"#, "512", "pooling.lengths.2", "8192"),
            (r#"{"2": 512, "4": 2048}"#, "512", "pooling.lengths.4", "2048"),
            (r#"{"6": 512}"#, "512", "pooling.lengths", "\"6\""),
            (r#"{"02": 512}"#, "512", "pooling.lengths", "\"02\""),
            ("{}", "512", "pooling.lengths", "none"),
            (r#"{"2": 512}"#, "100", "block", "100"),
        ] {
            let error = halving(lengths, block).unwrap_err();
            assert_eq!((error.key.as_str(), error.found.as_str()), (key, found), "{lengths}: {}", error.expected);
        }
    }
}
