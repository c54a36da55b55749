//! The encoder's work on a document, derived from the architecture: groups of layers and the poolings between them.

use super::config::{Architecture, AttentionKind, DocumentPooling};
use crate::nn::ConfigError;

/// Maximum vectors of one block of work, unless an attention block has more.
const MAX_UNIT: usize = 512;

/// Layers between two poolings, and the pooling after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerGroup {
    /// The first layer.
    pub(super) first: usize,
    /// One past the last layer.
    pub(super) end: usize,
    /// Input vectors of the longest document.
    pub(super) length: usize,
    /// Vectors of an attention block; `None` if every vector attends to all.
    pub(super) block: Option<usize>,
    /// Factor by which the pooling after the last layer shrinks the document; `None` without pooling.
    pub(super) factor: Option<usize>,
}

/// The encoder's work on a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EncoderPlan {
    /// Groups in order; the last one has no layers if the encoder ends with a pooling.
    pub(super) groups: Vec<LayerGroup>,
    /// True if every document is padded to the maximum length.
    pub(super) padded: bool,
    /// True if attention masks padding: in encoders without blocks and pooling.
    pub(super) masks_padding: bool,
    /// True if a document must not contain padding.
    pub(super) rejects_padding: bool,
    /// True if the decoder attends to as many vectors as there are tokens, despite pooling.
    pub(super) upsamples: bool,
}

impl EncoderPlan {
    /// Derives the plan from a checked architecture. Fails if no pooling produces a length, or a block would drop
    /// needed vectors.
    pub(super) fn new(a: &Architecture) -> Result<Self, ConfigError> {
        let mut groups = Vec::new();
        let mut first = 0;
        let mut length = a.source_length;
        // With local and global heads a layer needs the whole document.
        let block = a.block.filter(|_| a.attention == AttentionKind::Softmax);
        for (layer, kept) in pooled_lengths(a)? {
            let key = || format!("pooling.lengths.{layer}");
            if kept == length {
                return Err(ConfigError::new(key(), format!("fewer than the {length} vectors that come in"), kept));
            }
            if let Some(kind) = a.pooling.kind() {
                kind.pooler(length, kept).map_err(|rule| ConfigError::new(key(), rule, kept))?;
            }
            groups.push(LayerGroup { first, end: layer + 1, length, block, factor: Some(length / kept) });
            first = layer + 1;
            length = kept;
        }
        groups.push(LayerGroup { first, end: a.encoder_layers, length, block, factor: None });
        let upsamples = matches!(a.pooling, DocumentPooling::Funnel { .. });
        // Cutting to whole blocks must not drop vectors of the last group, nor any that upsampling reads.
        let drops = |group: &&LayerGroup| {
            let whole = group.block.is_none_or(|block| group.length.is_multiple_of(block.min(group.length)));
            (upsamples || group.factor.is_none()) && a.padded && group.first < group.end && !whole
        };
        if let Some(group) = groups.iter().find(drops) {
            let expected = format!("a divisor of {}: whole blocks drop the remainder", group.length);
            return Err(ConfigError::new("block", expected, block.unwrap_or(0)));
        }
        Ok(Self {
            groups,
            padded: a.padded,
            masks_padding: block.is_none() && a.pooling == DocumentPooling::None {},
            rejects_padding: a.attention != AttentionKind::Softmax,
            upsamples,
        })
    }

    /// Returns the layers that a pooling follows.
    pub(super) fn pooled_layers(&self) -> impl Iterator<Item = usize> {
        self.groups.iter().filter(|group| group.factor.is_some()).map(|group| group.end - 1)
    }

    /// Returns the vectors of the longest document, before and after each pooling.
    pub(super) fn lengths(&self) -> Vec<usize> {
        self.groups.iter().map(|group| group.length).collect()
    }

    /// Returns the vectors of the longest document that the decoder attends to.
    pub(super) fn memory_length(&self) -> usize {
        let group = if self.upsamples { self.groups.first() } else { self.groups.last() };
        group.map_or(0, |group| group.length)
    }

    /// Returns the factor by which all poolings together shrink a document.
    pub(super) fn total_factor(&self) -> usize {
        self.groups.iter().filter_map(|group| group.factor).product()
    }

    /// Returns the maximum vectors of one block of work.
    pub(super) fn max_unit(&self) -> usize {
        self.groups.iter().map(LayerGroup::unit).max().unwrap_or(MAX_UNIT)
    }
}

impl LayerGroup {
    /// Returns the vectors of an attention block; all of the longest document if every vector attends to all.
    pub(super) fn block_len(&self) -> usize {
        self.block.unwrap_or(self.length).min(self.length)
    }

    /// Returns the vectors that go through a layer at a time: a multiple of the attention block, and a page of vectors.
    pub(super) fn unit(&self) -> usize {
        match self.block {
            Some(_) => self.block_len() * (MAX_UNIT / self.block_len()).max(1),
            None => MAX_UNIT,
        }
    }
}

/// Returns the layers that a pooling follows, in order, each with the vectors that are left.
fn pooled_lengths(a: &Architecture) -> Result<Vec<(usize, usize)>, ConfigError> {
    let Some(lengths) = a.pooling.lengths() else { return Ok(Vec::new()) };
    if lengths.is_empty() {
        return Err(ConfigError::new("pooling.lengths", "at least one layer", "none"));
    }
    let layer = |key: &String| {
        let number: Option<usize> = key.parse().ok().filter(|layer| *layer < a.encoder_layers);
        number.filter(|number| number.to_string() == *key).ok_or_else(|| {
            ConfigError::new(
                "pooling.lengths",
                format!("layers from 0 to {}", a.encoder_layers - 1),
                format!("{key:?}"),
            )
        })
    };
    let all: Result<Vec<_>, _> = lengths.iter().map(|(key, &kept)| Ok((layer(key)?, kept))).collect();
    let mut all = all?;
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

    fn halving(lengths: &str, block: &str) -> Result<EncoderPlan, ConfigError> {
        let pooling =
            format!(r#"{{"kind": "successive-halving", "lengths": {lengths}, "flip_right": true, "sort_back": true}}"#);
        EncoderPlan::new(&architecture(&format!(r#""block": {block}, "pooling": {pooling}"#)))
    }

    #[test]
    fn plans_the_published_deep_model() {
        let plan = halving(r#"{"2": 2048, "3": 512}"#, "512").unwrap();
        assert_eq!(plan.lengths(), [8192, 2048, 512]);
        let layers: Vec<_> = plan.groups.iter().map(|group| (group.first, group.end, group.factor)).collect();
        assert_eq!(layers, [(0, 3, Some(4)), (3, 4, Some(4)), (4, 6, None)]);
        assert!(plan.groups.iter().all(|group| group.unit() == 512) && !plan.masks_padding);
        // A pooling after the last layer leaves a group without layers.
        let plan = halving(r#"{"5": 512}"#, "100").unwrap();
        assert_eq!((plan.groups.len(), plan.groups[1].first, plan.groups[1].end), (2, 6, 6));
        assert_eq!(plan.groups[0].unit(), 500);
        let vanilla = EncoderPlan::new(&architecture(r#""block": null, "pooling": {"kind": "none"}"#)).unwrap();
        assert!(vanilla.masks_padding && vanilla.groups.len() == 1);
    }

    #[test]
    fn impossible_lengths_are_reported_with_the_rule() {
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
