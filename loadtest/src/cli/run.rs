//! `weir-loadtest run`: one load.

use super::{
    arrivals::Arrivals,
    extent, runtime,
    session::{Common, Session},
};
use crate::{
    error::{Error, Result},
    load::plan::Load,
    report::document::Part,
};

/// Measures one load.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// The model; may be left out if the server has one.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// A closed loop: so many requests at a time, each followed by the next. 8 if --rate is not given either.
    #[arg(long, value_name = "N", conflicts_with = "rate")]
    concurrency: Option<usize>,
    /// An open loop: requests a second, whatever the answers do.
    #[arg(long, value_name = "RATE")]
    rate: Option<f64>,
    #[command(flatten)]
    arrivals: Arrivals,
}

pub(super) fn run(args: Args, command: String) -> Result<()> {
    let Args { common, model, concurrency, rate, arrivals } = args;
    arrivals.check(rate.is_some(), "--rate")?;
    let load = match rate {
        Some(rate) => {
            extent::rate("--rate", rate)?;
            arrivals.load(rate)
        }
        None => {
            let concurrency = concurrency.unwrap_or(8);
            extent::in_flight("--concurrency", concurrency)?;
            Load::Closed { concurrency }
        }
    };
    let Common { server, work, extent, output } = common;
    let (limits, most) = (extent.extent()?, extent.max_in_flight);
    output.check()?;
    let document = runtime(server.threads)?.block_on(async {
        let mut session = Session::open(server, work, &Vec::from_iter(model), false, command).await?;
        session.cancel = extent.cancel_share;
        let model = &session.models[0];
        let point = session.point(model, load, limits, (most, 0)).await?;
        Ok::<_, Error>(session.document(vec![Part::Run { model: session.asked(model), point }], true))
    })?;
    output.tell_measured(&[document], None)
}
