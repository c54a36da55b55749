//! The size of responses that are collected before they are sent. A streamed response needs no such limit.

use crate::{
    config::TransportConfig,
    middleware::limits::{BodyMemory, Reservation},
};
use std::sync::Arc;
use weir_kernels::error::{Error, Result};

/// Maximum bytes of a gRPC response of one message: clients read no longer one unless they raise their limit.
pub(crate) const UNARY_BYTES: usize = 4 << 20;

/// Bytes that a response of one message needs besides what grows with the request: usage, timing, names.
const UNARY_REST: usize = 4 << 10;

/// Checks that a response of one message, with at most `fixed` bytes and `each` bytes for each of `length` `unit`s of `field`, is not
/// too long. The error says `why`.
pub(crate) fn check_unary(
    field: &'static str,
    length: usize,
    unit: &'static str,
    fixed: usize,
    each: usize,
    why: &'static str,
) -> Result<()> {
    let limit = UNARY_BYTES.saturating_sub(UNARY_REST).saturating_sub(fixed) / each.max(1);
    if length > limit {
        return Err(Error::TooLong { field, length, limit, unit, why: Some(why) });
    }
    Ok(())
}

/// Limits the memory of collected responses: of each, and of all together with arriving requests.
#[derive(Clone)]
pub(crate) struct CollectedLimits {
    /// Maximum bytes of one response.
    max_bytes: usize,
    memory: Arc<BodyMemory>,
}

/// The memory of one collected response. Dropping it releases the memory.
pub(crate) struct CollectedSize {
    max_bytes: usize,
    bytes: usize,
    reserved: Reservation,
    /// How the client gets a response of any size.
    instead: &'static str,
}

impl CollectedLimits {
    /// Creates the limits of `config`. `memory` is shared with the bodies on all ports.
    pub(crate) fn new(memory: Arc<BodyMemory>, config: &TransportConfig) -> Self {
        Self { max_bytes: config.response_bytes, memory }
    }

    /// Begins a response to this tenant. The error of a response that is too large says what to do `instead`.
    pub(crate) fn begin(&self, tenant: &Arc<str>, instead: &'static str) -> CollectedSize {
        let reserved = Reservation::new(Arc::clone(&self.memory), Arc::clone(tenant));
        CollectedSize { max_bytes: self.max_bytes, bytes: 0, reserved, instead }
    }
}

impl CollectedSize {
    /// Reserves memory for a response that has grown to `bytes` bytes. Fails with [`Error::LongerThan`] if that is more than one
    /// response may have, and with [`Error::QueueFull`] if no memory is left.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.max_bytes {
            let unit = "bytes of a response that is not streamed";
            let why = Some(self.instead);
            return Err(Error::LongerThan { field: "stream", limit: self.max_bytes, unit, why });
        }
        if bytes > self.bytes {
            self.reserved.add(bytes - self.bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }
}
