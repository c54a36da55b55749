//! What a sequence remembers: three caches, where segments ended, and the companion's sequence beside it.
//!
//! Everything else follows from these: a row waits for its segment step while `middle` is behind `ends`, and the symbols that
//! wait with it are those between the ends of `post` and `pre`. So a fork is a clone, and a rollback shortens.

use crate::{
    decode::contract::{Noise, Row, State},
    error::{Error, Result},
    nn::cache::Cache,
};

/// One sequence of an hourglass.
pub struct HourglassState {
    /// The pre stack's keys and values, and its output at each symbol: what pooling and the residual read.
    pub pre: Cache,
    /// What there is beyond the pre stack; none in a vanilla model.
    pub pooled: Option<PooledState>,
    /// Where sampled boundaries take their noise from; none if boundaries are not sampled.
    pub noise: Option<Noise>,
    /// The position of the first symbol in its stream.
    pub offset: usize,
    /// The companion's sequence and its entropies.
    pub companion: Option<CompanionState>,
}

/// The part of a sequence beyond the pre stack.
#[derive(Clone)]
pub struct PooledState {
    /// The middle stack: position 0 is the null group, position m + 1 segment m; with its output, which upsampling reads.
    pub middle: Cache,
    /// The post stack.
    pub post: Cache,
    /// The position of each closed segment's last symbol.
    pub ends: Vec<usize>,
}

/// A companion's sequence.
pub struct CompanionState {
    /// Taken out while it is being stepped.
    pub row: Option<Row>,
    /// H_t, in nats, for every symbol fed.
    pub entropies: Vec<f64>,
}

impl HourglassState {
    /// Whether segments are closed that the middle stack has not seen.
    pub fn waits(&self) -> bool {
        self.pooled.as_ref().is_some_and(|pooled| pooled.middle.len() < pooled.ends.len() + 1)
    }

    /// The part beyond the pre stack.
    ///
    /// # Errors
    /// A vanilla model has none.
    pub fn pooled(&self) -> Result<&PooledState> {
        self.pooled.as_ref().ok_or_else(no_segments)
    }

    /// The same, to change.
    ///
    /// # Errors
    /// A vanilla model has none.
    pub fn pooled_mut(&mut self) -> Result<&mut PooledState> {
        self.pooled.as_mut().ok_or_else(no_segments)
    }
}

fn no_segments() -> Error {
    Error::Internal("a vanilla sequence has no segments".into())
}

impl PooledState {
    /// The symbols of segment `m`.
    pub fn segment(&self, m: usize) -> std::ops::RangeInclusive<usize> {
        let start = if m == 0 { 0 } else { self.ends[m - 1] + 1 };
        start..=self.ends[m]
    }

    /// The middle position whose output symbol `t` sees: the number of segments that ended with it or before.
    pub fn sees(&self, t: usize) -> usize {
        self.ends.partition_point(|&end| end <= t)
    }
}

impl State for HourglassState {
    fn len(&self) -> usize {
        self.pre.len()
    }

    fn segments(&self) -> usize {
        self.pooled.as_ref().map_or(0, |pooled| pooled.ends.len())
    }

    fn fork(&self) -> Box<dyn State> {
        let companion = self.companion.as_ref().map(|companion| CompanionState {
            row: companion.row.as_ref().map(|row| Row::new(row.state.fork())),
            entropies: companion.entropies.clone(),
        });
        let (pre, pooled, noise) = (self.pre.clone(), self.pooled.clone(), self.noise.clone());
        Box::new(Self { pre, pooled, noise, offset: self.offset, companion })
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        if self.waits() {
            return Err(Error::Internal("a row that waits for a segment step cannot be rolled back".into()));
        }
        if len > self.len() {
            return Err(Error::Internal(format!("rollback to {len}, beyond the end {}", self.len())));
        }
        if let Some(pooled) = &mut self.pooled {
            pooled.ends.truncate(pooled.ends.partition_point(|&end| end < len));
            pooled.middle.truncate(pooled.ends.len() + 1);
            pooled.post.truncate(len);
        }
        if let Some(companion) = &mut self.companion {
            companion.entropies.truncate(len);
            if let Some(row) = &mut companion.row {
                row.state.rollback(len)?;
            }
        }
        self.pre.truncate(len);
        Ok(())
    }

    fn bytes(&self) -> usize {
        let pooled = self.pooled.as_ref().map_or(0, |pooled| pooled.middle.bytes() + pooled.post.bytes());
        let companion = self.companion.as_ref().and_then(|companion| companion.row.as_ref());
        self.pre.bytes() + pooled + companion.map_or(0, |row| row.state.bytes())
    }
}
