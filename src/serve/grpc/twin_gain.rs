//! Measured gain of a model over its unpooled twin: the same weights, served with pooling turned off.

use crate::{
    metrics::latency_windows::{LatencyKind, LatencySlice},
    serve::registry::engines::Lease,
};
use weir_proto::v1;

/// Fewest times of a model for an interval.
const MIN_TIMES: u64 = 8;
/// Standard normal quantile of 97.5 %. Ranks of a median's interval lie this many half square roots of the count from the middle.
const NORMAL: f64 = 1.96;

/// Returns the twin of a model among `engines`. Neither a twin nor a model with other weights is its own.
pub(super) fn find_twin<'a>(engine: &Lease, engines: &'a [Lease]) -> Option<&'a Lease> {
    let card = engine.card();
    let is_twin = |other: &&Lease| {
        let other = other.card();
        other.unpooled_twin && other.sha256 == card.sha256 && other.dtype == card.dtype
    };
    engines.iter().find(is_twin).filter(|_| !card.unpooled_twin)
}

/// Compares a model's requests with those of its twin, of the given name.
pub(super) fn twin_gain(own: &LatencySlice, twin: &LatencySlice, name: &str) -> v1::TwinGain {
    v1::TwinGain {
        twin: name.to_owned(),
        encode: median_gain(own, twin, LatencyKind::Encode),
        decode_per_token: median_gain(own, twin, LatencyKind::TokenDecode),
        cross_attention_bytes: bytes_per_token(twin).zip(bytes_per_token(own)).map(|(twin, own)| twin / own),
    }
}

fn bytes_per_token(slice: &LatencySlice) -> Option<f64> {
    let tokens = slice.counts.prompt_chars;
    let bytes = slice.counts.memory_bytes;
    (tokens > 0 && bytes > 0).then(|| bytes as f64 / tokens as f64)
}

/// Divides the twin's median by the model's. The interval spans the ratios of the ends of both medians' 95 % intervals, which are order
/// statistics.
fn median_gain(own: &LatencySlice, twin: &LatencySlice, kind: LatencyKind) -> Option<v1::MedianGain> {
    let (own, twin) = own.times(kind).zip(twin.times(kind))?;
    let count = own.len();
    let twin_count = twin.len();
    let offset = |count: u64| NORMAL / 2.0 / (count as f64).sqrt();
    let own_at = |share: f64| own.value_at_quantile(share).max(1) as f64;
    let twin_at = |share: f64| twin.value_at_quantile(share).max(1) as f64;
    let has_interval = count.min(twin_count) >= MIN_TIMES;
    let low = twin_at(0.5 - offset(twin_count)) / own_at(0.5 + offset(count));
    let high = twin_at(0.5 + offset(twin_count)) / own_at(0.5 - offset(count));
    Some(v1::MedianGain {
        ratio: twin_at(0.5) / own_at(0.5),
        low: has_interval.then_some(low),
        high: has_interval.then_some(high),
        count,
        twin_count,
    })
}
