//! `weir-loadtest run`: measures one load.

use super::{
    load_args::{ArrivalArgs, LoadArgs, check_in_flight, check_rate},
    server::runtime,
    session::MeasurementSession,
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
    /// Model; may be left out if the server has only one.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Closed loop with this many requests in flight: when one ends, the next starts [default: 8, unless --rate is given].
    #[arg(long, value_name = "N", conflicts_with = "rate")]
    concurrency: Option<usize>,
    /// Open loop with this many requests per second, independent of the answers.
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
            check_rate("--rate", rate)?;
            arrivals.load(rate)
        }
        None => {
            let concurrency = concurrency.unwrap_or(8);
            check_in_flight("--concurrency", concurrency)?;
            LoadPattern::Closed { concurrency }
        }
    };
    let LoadArgs { server, workload, length, output } = common;
    let limits = length.limits()?;
    output.check()?;
    let report = runtime(server.threads)?.block_on(async {
        let mut session = MeasurementSession::open(server, workload, &Vec::from_iter(model), false, command).await?;
        session.cancel_share = length.cancel_share;
        let model = &session.models[0];
        let point = session.point(model, load, limits).await?;
        Ok::<_, Error>(session.report(vec![ReportPart::Run { model: session.model_names(model), point }], true))
    })?;
    output.write_measured(&[report], None)
}
