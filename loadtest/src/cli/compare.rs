//! `weir-loadtest compare`: models of one server, request by request.

use super::{
    output::OutputArgs,
    run_length, runtime,
    server::ServerArgs,
    session::{LoadProgress, MeasurementSession},
    workload::WorkloadArgs,
};
use crate::{
    client::models::calibrated,
    comparison::{self, ComparisonSetup, MAX_MODELS, MAX_PAIRS, ModelComparison, score},
    error::{Error, Result},
    report::data::ReportPart,
};

/// Compares models of one server request by request.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    work: WorkloadArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// The models, the baseline first; if not given, all that the server has.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    models: Vec<String>,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Fail if the server's estimate of a pooled model's gain, of the total or of a character, is so many percent above or below the
    /// measured one. The baseline must be the same model without pooling.
    #[arg(long, value_name = "PERCENT")]
    agree_within: Option<f64>,
}

/// How much is compared.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RoundArgs {
    /// Rounds: requests that every model answers.
    #[arg(long, value_name = "N", default_value_t = 50)]
    rounds: u64,
    /// Rounds before, which are not measured.
    #[arg(long, value_name = "N", default_value_t = 3)]
    warm_up_rounds: u64,
    /// Rounds in flight at a time; within each, one model answers at a time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds_at_a_time: usize,
    /// Characters of the text whose bits per character are told; 0: they are not.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    score_chars: usize,
}

impl RoundArgs {
    pub(super) fn check(&self) -> Result<()> {
        for (field, count, least) in [("--rounds", self.rounds, 1), ("--warm-up-rounds", self.warm_up_rounds, 0)] {
            if !(least..=MAX_PAIRS).contains(&count) {
                return Err(Error::option(field, count, format!("from {least} to {MAX_PAIRS}")));
            }
        }
        run_length::in_flight("--rounds-at-a-time", self.rounds_at_a_time)
    }
}

pub(super) fn run(args: Args, command: String) -> Result<()> {
    let Args { server, work, output, models, rounds, agree_within } = args;
    rounds.check()?;
    output.check()?;
    if let Some(percent) = agree_within.filter(|percent| !(0.0..=1000.0).contains(percent)) {
        return Err(Error::option("--agree-within", percent, "from 0 to 1000 percent"));
    }
    let document = runtime(server.threads)?.block_on(async {
        let session = MeasurementSession::open(server, work, &models, true, command).await?;
        let comparison = compare(&session, &rounds).await?;
        Ok::<_, Error>(session.document(vec![ReportPart::Compare { comparison }], false))
    })?;
    output.tell_measured(std::slice::from_ref(&document), None)?;
    match (agree_within, &document.parts[..]) {
        (Some(percent), [ReportPart::Compare { comparison }]) => comparison.agrees(percent),
        _ => Ok(()),
    }
}

/// Whether the session's models can be asked for the same.
pub(super) fn check(session: &MeasurementSession) -> Result<()> {
    let models = &session.models;
    if !(2..=MAX_MODELS).contains(&models.len()) {
        return Err(Error::option("--models", models.len(), format!("2 to {MAX_MODELS} models")));
    }
    let of_kind = |reads| models.iter().find(|model| model.summarizes == reads).map(|model| &model.name);
    if let (Some(reader), Some(writer)) = (of_kind(true), of_kind(false)) {
        return Err(Error::Setting(format!(
            "--models: {reader} reads documents and {writer} does not, so that they cannot be asked for the same: give models of one \
             kind, or use `report`, which compares each kind within itself"
        )));
    }
    if let Some((workload, model)) = session.named() {
        return Err(Error::Setting(format!(
            "--workload {workload}: model={model}: models are compared by the same requests, so that none may name its own"
        )));
    }
    Ok(())
}

/// Compares the session's models.
pub(super) async fn compare(session: &MeasurementSession, rounds: &RoundArgs) -> Result<ModelComparison> {
    check(session)?;
    let models = &session.models;
    let mut targets = Vec::new();
    for model in models {
        targets.push(session.target(model, rounds.rounds_at_a_time, false).await?);
    }
    let mut scores = Vec::new();
    // models that summarize go on from no text
    let scores_texts = rounds.score_chars > 0 && !models.iter().any(|model| model.summarizes);
    let scored = if scores_texts { Some(session.work.scored(rounds.score_chars, models)?) } else { None };
    if let Some((text, _)) = &scored {
        let mut stop = session.stop.clone();
        for target in &targets {
            scores.push(tokio::select! {
                _ = stop.wait_for(|stop| *stop) => Err("interrupted".to_owned()),
                score = score::bits_per_char(target, text) => score,
            });
        }
    }
    let plan = ComparisonSetup {
        targets,
        mix: session.mix(session.next_seed())?,
        rounds: rounds.rounds,
        warm_up: rounds.warm_up_rounds,
        concurrency: rounds.rounds_at_a_time,
        seed: session.work.seed,
        threads: session.threads(),
    };
    let connections: Vec<_> = plan.targets.iter().map(|target| target.pool.next().ok().cloned()).collect();
    let bar = LoadProgress::rounds("comparing", plan.rounds + plan.warm_up);
    let told = bar.clone();
    let played = comparison::play(plan, (session.stop.clone(), true), move |count| told.set_position(count)).await;
    bar.finish_and_clear();
    let mut comparison = played?;
    comparison.scored = scored.map(|(_, what)| what);
    for (side, score) in comparison.models.iter_mut().zip(scores) {
        match score {
            Ok(bits) => side.bits_per_char = Some(bits),
            Err(why) => side.score_refused = Some(why),
        }
    }
    for (side, connection) in comparison.models.iter_mut().zip(connections) {
        if let Some(connection) = connection.filter(|_| side.estimated.is_some()) {
            side.calibrated = calibrated(&connection, &side.model).await;
        }
    }
    Ok(comparison)
}
