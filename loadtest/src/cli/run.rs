//! `weir-loadtest run`: one load.

use super::{
    arrivals::ArrivalArgs,
    run_length, runtime,
    session::{LoadArgs, MeasurementSession},
};
use crate::{
    error::{Error, Result},
    load::schedule::LoadPattern,
    report::data::ReportPart,
};

/// Measures one load.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: LoadArgs,
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
    arrivals: ArrivalArgs,
}

pub(super) fn run(args: Args, command: String) -> Result<()> {
    let Args { common, model, concurrency, rate, arrivals } = args;
    arrivals.check(rate.is_some(), "--rate")?;
    let load = match rate {
        Some(rate) => {
            run_length::rate("--rate", rate)?;
            arrivals.load(rate)
        }
        None => {
            let concurrency = concurrency.unwrap_or(8);
            run_length::in_flight("--concurrency", concurrency)?;
            LoadPattern::Closed { concurrency }
        }
    };
    let LoadArgs { server, work, extent, output } = common;
    let (limits, most) = (extent.extent()?, extent.max_in_flight);
    output.check()?;
    let document = runtime(server.threads)?.block_on(async {
        let mut session = MeasurementSession::open(server, work, &Vec::from_iter(model), false, command).await?;
        session.cancel = extent.cancel_share;
        let model = &session.models[0];
        let point = session.point(model, load, limits, (most, 0)).await?;
        Ok::<_, Error>(session.document(vec![ReportPart::Run { model: session.asked(model), point }], true))
    })?;
    output.tell_measured(&[document], None)
}
