//! Measured gain of a model over its unpooled twin: the same weights, served with pooling turned off.

use crate::{
    decode::contract::unpooled_name,
    metrics::latency_windows::{LatencyKind, LatencySlice},
    serve::registry::engines::Lease,
};
use weir_proto::v1;

/// Fewest times of a model for an interval.
const MIN_TIMES: u64 = 8;
/// Greatest probability that a median lies below its interval, and that it lies above.
const TAIL: f64 = 0.025;

/// Returns the unpooled twin of a model among `engines`: the same weights and dtype under the twin's name. `None` for a model that is
/// itself a twin.
pub(super) fn find_twin<'a>(engine: &Lease, engines: &'a [Lease]) -> Option<&'a Lease> {
    let card = engine.card();
    let name = unpooled_name(&card.name);
    let is_twin = |other: &&Lease| {
        let other = other.card();
        other.unpooled_baseline && other.name == name && other.sha256 == card.sha256 && other.dtype == card.dtype
    };
    engines.iter().find(is_twin).filter(|_| !card.unpooled_baseline)
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

/// Returns the quantiles of `count` times between which their median lies with a probability of at least 95 %: those of two order
/// statistics, by the binomial distribution.
fn interval(count: u64) -> (f64, f64) {
    let n = count as f64;
    let mut rank = 0_u64;
    let mut ln_probability = -n * std::f64::consts::LN_2; // of exactly `rank` times below the median
    let mut below = ln_probability.exp();
    while below <= TAIL && rank < count / 2 {
        ln_probability += ((n - rank as f64) / (rank as f64 + 1.0)).ln();
        below += ln_probability.exp();
        rank += 1;
    }
    // Half a rank less, so that rounding does not select the next one.
    let low = (rank as f64 - 0.5) / n.max(1.0);
    (low.max(0.0), 1.0 - low.max(0.0))
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
    let own_at = |share: f64| own.value_at_quantile(share).max(1) as f64;
    let twin_at = |share: f64| twin.value_at_quantile(share).max(1) as f64;
    let has_interval = count.min(twin_count) >= MIN_TIMES;
    let (own_low, own_high) = interval(count);
    let (twin_low, twin_high) = interval(twin_count);
    let low = twin_at(twin_low) / own_at(own_high);
    let high = twin_at(twin_high) / own_at(own_low);
    Some(v1::MedianGain {
        ratio: twin_at(0.5) / own_at(0.5),
        low: has_interval.then_some(low),
        high: has_interval.then_some(high),
        count,
        twin_count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranks are those of tables of the sign test.
    #[test]
    fn the_interval_of_a_median_is_exact() {
        for (count, first, last) in [(8, 1, 8), (9, 2, 8), (20, 6, 15), (100, 40, 61), (100_000, 49_690, 50_311)] {
            let (low, high) = interval(count);
            let rank = |share: f64| (share * count as f64).ceil() as u64;
            assert_eq!((rank(low), rank(high)), (first, last), "{count}");
        }
    }
}
