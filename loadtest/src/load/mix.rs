//! Mixes of several workloads. The content of a request is a function of the seed and the request's number alone.

use super::{
    edit, generate, summarize,
    workload::{EDIT, PreparedRequest, SUMMARIZE, Workload, WorkloadInfo, WorkloadSpec},
};
use crate::error::{Error, Result};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, weighted::WeightedIndex};
use std::collections::HashSet;
use weir_proto::shown::quoted;

/// Maximum workloads of a mix.
pub const MAX_WORKLOADS: usize = 16;

const KINDS: [WorkloadKind; 3] = [
    WorkloadKind { name: "generate", build: generate::build },
    WorkloadKind { name: SUMMARIZE, build: summarize::build },
    WorkloadKind { name: EDIT, build: edit::build },
];
struct WorkloadKind {
    name: &'static str,
    build: fn(&WorkloadSpec) -> Result<Box<dyn Workload>>,
}

/// Workloads with their weights.
pub struct WorkloadMix {
    workloads: Vec<Box<dyn Workload>>,
    weights: WeightedIndex<f64>,
    seed: u64,
    cancel_share: f64,
}

/// Request drawn from a mix.
pub struct DrawnRequest {
    /// Index of its workload.
    pub workload: usize,
    /// Request.
    pub request: Box<dyn PreparedRequest>,
    /// Characters after which the client cancels it, if it does.
    pub cancel_after: Option<u64>,
}

impl WorkloadMix {
    /// Builds a mix; the client cancels a share of `cancel_share` of its requests midway.
    /// Fails if the list is empty or too long, two workloads share a name, or one is invalid.
    pub fn new(specs: &[WorkloadSpec], seed: u64, cancel_share: f64) -> Result<Self> {
        if !(1..=MAX_WORKLOADS).contains(&specs.len()) {
            return Err(Error::option("--workload", specs.len(), format!("1 to {MAX_WORKLOADS} workloads")));
        }
        let mut names = HashSet::new();
        if let Some(repeated) = specs.iter().find(|spec| !names.insert(&spec.name)) {
            let expected = "a name of its own (the report could not distinguish two workloads of one name)";
            return Err(Error::option("--workload name", quoted(&repeated.name), expected));
        }
        let build = |spec: &WorkloadSpec| {
            let kind = KINDS.iter().find(|kind| kind.name == spec.kind).ok_or_else(|| {
                let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
                Error::option("--workload kind", quoted(&spec.kind), format!("one of {}", names.join(", ")))
            })?;
            (kind.build)(spec)
        };
        let workloads = specs.iter().map(build).collect::<Result<Vec<_>>>()?;
        let weights = WeightedIndex::new(specs.iter().map(|spec| spec.weight));
        let weights = weights.map_err(|error| Error::option("--workload weight", error, "numbers above 0"))?;
        Ok(Self { workloads, weights, seed, cancel_share })
    }

    /// Returns the model of each workload, where `measured` is the measured model.
    pub fn models(&self, measured: &str) -> Vec<String> {
        self.infos().into_iter().map(|info| info.model.unwrap_or_else(|| measured.to_owned())).collect()
    }

    /// Describes the workloads for the report.
    pub fn infos(&self) -> Vec<WorkloadInfo> {
        self.workloads.iter().map(|workload| workload.info()).collect()
    }

    /// Returns the request with this number; it is always the same. Fails only if an invariant is broken.
    pub fn draw(&self, number: u64) -> Result<DrawnRequest> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(number);
        let index = self.weights.sample(&mut rng);
        let workload = self.workloads.get(index).ok_or_else(|| Error::Internal(format!("no workload {index}")))?;
        // drawn before the content, so that the content does not depend on `cancel_share`
        let is_cancelled = rng.random_bool(self.cancel_share);
        let share: f64 = rng.random();
        let request = workload.draw(&mut rng)?;
        let cancel_after = is_cancelled.then(|| (share * request.max_chars() as f64).ceil().max(1.0) as u64);
        Ok(DrawnRequest { workload: index, request, cancel_after })
    }
}
