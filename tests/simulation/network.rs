//! Connections in memory that are slow, stall, and break.

use crate::dice::Dice;
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    sync::{mpsc, watch},
    time::sleep,
};
use weir::serve::Accepted;

/// What a connection does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Open,
    /// Bytes wait, as if the route were gone.
    Stalled,
    /// Both ends see the connection closed.
    Cut,
}

/// Properties of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkQuality {
    /// Maximum milliseconds that a packet takes.
    pub(crate) latency: usize,
    /// Bytes that fit into each of the buffers on the way.
    pub(crate) buffer: usize,
}

/// The control of a connection. Dropping it cuts the connection.
pub(crate) struct Link(watch::Sender<LinkState>);

impl Link {
    pub(crate) fn set(&self, state: LinkState) {
        self.0.send_replace(state);
    }
}

/// Connects to a listener. Returns `None` if the listener is closed.
pub(crate) async fn connect(
    listener: &mpsc::Sender<Accepted>,
    address: SocketAddr,
    quality: LinkQuality,
    mut dice: Dice,
) -> Option<(DuplexStream, Link)> {
    let (near, near_wire) = duplex(quality.buffer);
    let (far, far_wire) = duplex(quality.buffer);
    let (state, changes) = watch::channel(LinkState::Open);
    let (from_near, to_near) = split(near_wire);
    let (from_far, to_far) = split(far_wire);
    tokio::spawn(carry(from_near, to_far, changes.clone(), quality, dice.split()));
    tokio::spawn(carry(from_far, to_near, changes, quality, dice));
    listener.send(Accepted { stream: Box::new(far), address }).await.ok()?;
    Some((near, Link(state)))
}

/// Carries bytes in one direction until one end closes or the link is cut.
async fn carry(
    from: ReadHalf<DuplexStream>,
    to: WriteHalf<DuplexStream>,
    mut state: watch::Receiver<LinkState>,
    quality: LinkQuality,
    dice: Dice,
) {
    let mut cut = state.clone();
    tokio::select! {
        biased;
        // an error means that the link's owner is gone
        _ = cut.wait_for(|state| *state == LinkState::Cut) => {}
        () = forward(from, to, &mut state, quality, dice) => {}
    }
}

async fn forward(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    state: &mut watch::Receiver<LinkState>,
    quality: LinkQuality,
    mut dice: Dice,
) {
    let mut packet = [0; 2048];
    loop {
        let limit = if dice.chance(30) { dice.between(1, 64) } else { packet.len() };
        let count = from.read(&mut packet[..limit]).await.unwrap_or(0);
        let delay = dice.between(0, quality.latency);
        if delay > 0 {
            sleep(Duration::from_millis(delay as u64)).await;
        }
        if state.wait_for(|state| *state != LinkState::Stalled).await.is_err() {
            return;
        }
        if count == 0 {
            // the other direction goes on
            let _ = to.shutdown().await;
            return;
        }
        if to.write_all(&packet[..count]).await.is_err() {
            return;
        }
    }
}
