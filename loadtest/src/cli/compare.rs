//! `weir-loadtest compare`: compares models of one server request by request.

use super::{
    load_args::check_in_flight,
    output::OutputArgs,
    progress,
    server::{ServerArgs, runtime},
    session::MeasurementSession,
    steps::Plan,
    workload::WorkloadArgs,
};
use crate::{
    client::models::fetch_calibration,
    comparison::{
        result::ModelComparison,
        rounds::{ComparisonSetup, MAX_MODELS, MAX_ROUNDS, bits_per_char, compare_models},
    },
    error::{Error, Result},
    report::data::ReportPart,
};

/// Compares models of one server request by request.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Models, the baseline first [default: all models of the server].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    models: Vec<String>,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Fail if the server's estimate of a pooled model's gain in total time or time per character differs from the measured gain by
    /// more than this percentage. The baseline must be the same model without pooling.
    #[arg(long, value_name = "PERCENT")]
    agree_within: Option<f64>,
}

/// Size of a comparison.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RoundArgs {
    /// Rounds; each is one request that every model answers.
    #[arg(long, value_name = "N", default_value_t = 50)]
    rounds: u64,
    /// Rounds before the measured ones.
    #[arg(long, value_name = "N", default_value_t = 3)]
    warm_up_rounds: u64,
    /// Rounds in flight at a time; within each, one model answers at a time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds_at_a_time: usize,
    /// Characters of the text to score in bits per character; 0 disables scoring.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    score_chars: usize,
}

impl RoundArgs {
    pub(super) fn check(&self) -> Result<()> {
        Error::check_range("--rounds", self.rounds, 1..=MAX_ROUNDS)?;
        Error::check_range("--warm-up-rounds", self.warm_up_rounds, 0..=MAX_ROUNDS)?;
        check_in_flight("--rounds-at-a-time", self.rounds_at_a_time)
    }

    /// Returns the number of rounds, with those before the measured ones.
    pub(super) fn total(&self) -> u64 {
        self.rounds.saturating_add(self.warm_up_rounds)
    }
}

pub(super) fn run(args: Args, command: String) -> Result<()> {
    let Args { server, workload, output, models, rounds, agree_within } = args;
    rounds.check()?;
    output.check()?;
    if let Some(percent) = agree_within.filter(|percent| !(0.0..=1000.0).contains(percent)) {
        return Err(Error::option("--agree-within", percent, "0 to 1000 percent"));
    }
    let report = runtime(server.threads)?.block_on(async {
        let session = MeasurementSession::open(server, workload, &models, true, command).await?;
        check(&session)?;
        let mut plan = Plan::default();
        plan.add_rounds(rounds.total());
        session.steps.begin(&plan);
        let comparison = compare(&session, &rounds).await?;
        Ok::<_, Error>(session.report(vec![ReportPart::Compare { comparison }], false))
    })?;
    output.write_measured(std::slice::from_ref(&report), None)?;
    match (agree_within, &report.parts[..]) {
        (Some(percent), [ReportPart::Compare { comparison }]) => comparison.check_estimates(percent),
        _ => Ok(()),
    }
}

/// Checks that all models of the session can answer the same requests.
pub(super) fn check(session: &MeasurementSession) -> Result<()> {
    let models = &session.models;
    if !(2..=MAX_MODELS).contains(&models.len()) {
        let found = match models[..] {
            [_] => {
                "1; to compare, serve another model as well, for example with `weir serve MODEL_A MODEL_B`".to_owned()
            }
            _ => models.len().to_string(),
        };
        return Err(Error::option("--models", found, format!("2 to {MAX_MODELS} models")));
    }
    let of_kind = |summarizes| models.iter().find(|model| model.summarizes == summarizes).map(|model| &model.name);
    if let (Some(reader), Some(writer)) = (of_kind(true), of_kind(false)) {
        return Err(Error::Setting(format!(
            "--models: {reader} summarizes documents and {writer} does not, so they cannot answer the same requests: name models of \
             one kind, or use `report`, which compares each kind separately"
        )));
    }
    if let Some((workload, model)) = session.workload_with_model() {
        return Err(Error::Setting(format!(
            "--workload {workload}: model={model}: a comparison sends the same requests to all models, so a workload cannot name one"
        )));
    }
    Ok(())
}

/// Compares the models of a session that [`check`] accepts.
pub(super) async fn compare(session: &MeasurementSession, rounds: &RoundArgs) -> Result<ModelComparison> {
    let models = &session.models;
    let names: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
    session.steps.next(format_args!("{}, comparison in {} rounds", names.join(", "), rounds.total()));
    let mut targets = Vec::new();
    for model in models {
        targets.push(session.target(model, rounds.rounds_at_a_time, false).await?);
    }
    let mut scores = Vec::new();
    // models that summarize cannot score a text
    let can_score = rounds.score_chars > 0 && !models.iter().any(|model| model.summarizes);
    let scored = if can_score { Some(session.workload.scored_text(rounds.score_chars, models)?) } else { None };
    if let Some((text, _)) = &scored {
        let mut stop = session.stop.clone();
        for target in &targets {
            scores.push(tokio::select! {
                _ = stop.wait_for(|stop| *stop) => Err("interrupted".to_owned()),
                score = bits_per_char(target, text) => score,
            });
        }
    }
    let setup = ComparisonSetup {
        targets,
        mix: session.mix(session.next_seed())?,
        rounds: rounds.rounds,
        warm_up: rounds.warm_up_rounds,
        concurrency: rounds.rounds_at_a_time,
        seed: session.workload.seed,
        threads: session.server.threads,
    };
    let connections: Vec<_> = setup.targets.iter().map(|target| target.pool.next().ok().cloned()).collect();
    let bar = progress::counting("comparing", setup.rounds + setup.warm_up);
    let updated = bar.clone();
    let result = compare_models(setup, session.stop.clone(), true, move |count| updated.set_position(count)).await;
    bar.finish_and_clear();
    let mut comparison = result?;
    comparison.set_units(models.iter().map(|model| model.unit));
    comparison.scored = scored.map(|(_, source)| source);
    for (model, score) in comparison.models.iter_mut().zip(scores) {
        match score {
            Ok(bits) => model.bits_per_char = Some(bits),
            Err(why) => model.score_refused = Some(why),
        }
    }
    for (model, connection) in comparison.models.iter_mut().zip(connections) {
        if let Some(connection) = connection.filter(|_| model.estimated.is_some()) {
            model.calibrated = fetch_calibration(&connection, &model.model).await;
        }
    }
    Ok(comparison)
}
