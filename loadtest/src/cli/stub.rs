//! `weir-loadtest stub`: a server with known delays, to check the tester's figures.

use super::{
    load_args::{MAX_IN_FLIGHT, check_in_flight},
    output,
    server::runtime,
};
use crate::{
    error::{Error, Result},
    stub::{Script, Stub},
    units,
};
use std::{net::SocketAddr, time::Duration};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

/// Text that the stub prints before its address.
pub(super) const LISTENING: &str = "listening on ";

/// Serves delays instead of text.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address to listen on. Port 0 selects a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50052")]
    listen: SocketAddr,
    /// Time from a request's turn to its first character.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::span)]
    first: Duration,
    /// Time from each character to the next.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::span)]
    gap: Duration,
    /// Time before a character that ends a segment [default: --gap].
    #[arg(long, value_name = "TIME", value_parser = units::span, requires = "segment")]
    boundary_gap: Option<Duration>,
    /// Characters per segment [default: the model does not pool].
    #[arg(long, value_name = "N")]
    segment: Option<u64>,
    /// Requests that run at once; others wait for their turn.
    #[arg(long, value_name = "N", default_value_t = MAX_IN_FLIGHT)]
    rows: usize,
    /// Time from the start of the server to a pause in all its answers.
    #[arg(long, value_name = "TIME", value_parser = units::span, requires = "pause_for")]
    pause_after: Option<Duration>,
    /// Duration of that pause.
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "pause_after")]
    pause_for: Option<Duration>,
    /// End when standard input ends, because the process that started the stub is then gone.
    #[arg(long, hide = true)]
    attached: bool,
}

impl Args {
    fn script(&self) -> Result<Script> {
        check_in_flight("--rows", self.rows)?;
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
        let name = || args.listen.to_string();
        let listener = TcpListener::bind(args.listen).await.map_err(Error::io(name()))?;
        let address = listener.local_addr().map_err(Error::io(name()))?;
        output::print(&format!("{LISTENING}{address}\n"))?;
        let end = async {
            if !args.attached {
                return std::future::pending().await;
            }
            // an error ends standard input like its end does
            let _ = tokio::task::spawn_blocking(|| std::io::stdin().lines().for_each(drop)).await;
        };
        let served = Stub::new(vec![script]).serve(TcpIncoming::from(listener).with_nodelay(Some(true)), end);
        served.await.map_err(|error| Error::Internal(format!("the stub server: {error}")))
    })
}
