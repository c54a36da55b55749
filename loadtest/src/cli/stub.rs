//! `weir-loadtest stub`: a server whose delays are known, to hold the tester against.

use super::{output, run_length, runtime};
use crate::{
    error::{Error, Result},
    stub::{Script, Stub},
    units,
};
use std::{net::SocketAddr, time::Duration};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

/// What it says before its address.
pub(super) const LISTENING: &str = "listening on ";

/// Serves delays instead of text.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where to listen; port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50052")]
    listen: SocketAddr,
    /// From a request's turn to its first character.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::span)]
    first: Duration,
    /// From each character to the next.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::span)]
    gap: Duration,
    /// The same before a character that ends a segment; if not given, as --gap.
    #[arg(long, value_name = "TIME", value_parser = units::span, requires = "segment")]
    boundary_gap: Option<Duration>,
    /// Every so manieth character ends a segment; if not given, the model does not pool.
    #[arg(long, value_name = "N")]
    segment: Option<u64>,
    /// Requests that are answered at once; others wait for their turn.
    #[arg(long, value_name = "N", default_value_t = run_length::MAX_IN_FLIGHT)]
    rows: usize,
    /// When it hangs, counted from its start.
    #[arg(long, value_name = "TIME", value_parser = units::span, requires = "pause_for")]
    pause_after: Option<Duration>,
    /// For how long it then hangs.
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "pause_after")]
    pause_for: Option<Duration>,
    /// End when standard input does: whoever started it is gone.
    #[arg(long, hide = true)]
    attached: bool,
}

impl Args {
    fn script(&self) -> Result<Script> {
        run_length::in_flight("--rows", self.rows)?;
        if self.segment == Some(0) {
            return Err(Error::option("--segment", 0, "at least 1"));
        }
        Ok(Script {
            first: self.first,
            plain: self.gap,
            boundary: self.boundary_gap.unwrap_or(self.gap),
            segment: self.segment.unwrap_or(0),
            rows: self.rows,
            pause: self.pause_after.zip(self.pause_for).map(|(after, span)| (after, after + span)),
            ..Script::instant("stub")
        })
    }
}

pub(super) fn run(args: Args) -> Result<()> {
    let script = args.script()?;
    runtime(1)?.block_on(async {
        let named = || args.listen.to_string();
        let listener = TcpListener::bind(args.listen).await.map_err(Error::io(named()))?;
        let address = listener.local_addr().map_err(Error::io(named()))?;
        output::write(&format!("{LISTENING}{address}\n"))?;
        let end = async {
            if !args.attached {
                return std::future::pending().await;
            }
            // how standard input ends is all the same
            let _ = tokio::task::spawn_blocking(|| std::io::stdin().lines().for_each(drop)).await;
        };
        let served = Stub::new(vec![script]).serve(TcpIncoming::from(listener).with_nodelay(Some(true)), end);
        served.await.map_err(|error| Error::Internal(format!("the stub server: {error}")))
    })
}
