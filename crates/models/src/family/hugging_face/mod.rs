//! Hugging Face checkpoints, computed with candle: subword models that people already have.
//!
//! `config.json`'s `model_type` selects an architecture, which names its tensors and builds a network. A step runs each row by
//! itself, in blocks of at most `BLOCK` tokens, and stores keys and values, or a recurrent state, in the row's state. The models
//! of candle-transformers return the last token's logits only and keep their caches private, so they can neither score a text in
//! chunks nor be forked, rolled back and measured.

mod architectures;
mod gpt_bigcode;
mod mamba;
pub mod memory;
mod transformer;

use crate::checkpoint::Config;
use crate::checkpoint::files::contents;
use crate::checkpoint::hugging_face::{BLT_MODEL_TYPE, DOWNLOAD, FAMILY, T5_MODEL_TYPES};
use crate::contract::{
    BoundaryOptions, Card, Cost, Exactness, KvMemory, Model, Scratch, SequenceRow, State, StepCost, StepStatus,
    check_mode, state_mut, state_ref,
};
use crate::family::decoder::set_fed;
use crate::family::hugging_face::memory::{BLOCK, Budget, Memory, MemoryShape, TokenState, failed};
use crate::family::hugging_face::transformer::{Architecture, Keys, Network, ReadArchitecture, Tensors};
use crate::family::parts::check_feed;
use crate::family::settings::{Bounds, DeviceChoice};
use crate::family::{Blueprint, Parts, TensorSpec};
use crate::text::subwords::TOKENIZER_FILE;
use candle_core::{Device, Tensor};
use rayon::ThreadPool;
use serde::Deserialize;
use std::{io, path::Path, sync::Arc};
use weir_kernels::Dtype;
use weir_kernels::error::{Error, Result, quoted};

// The table of architectures, and a model of the table behind the contract.

/// The architectures: `model_type` in `config.json`, and reader of its keys.
const ARCHITECTURES: &[(&str, ReadArchitecture)] = &[
    ("llama", architectures::read_llama),
    ("qwen2", architectures::read_qwen2),
    ("qwen3", architectures::read_qwen3),
    ("gemma2", architectures::read_gemma2),
    ("gpt_bigcode", gpt_bigcode::read),
    ("mamba", mamba::read),
];

/// Opens a device. Fails if the binary was built without it, or the system does not have it.
fn open(choice: DeviceChoice) -> Result<Device> {
    let unavailable = |bound: String| Error::bad_option("--device", choice.to_string(), bound);
    let missing = |feature: &str| format!("cpu (this binary was built without the feature {feature})");
    let broken = |error: candle_core::Error| unavailable(format!("a device that can be opened ({error})"));
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Cuda(_) if !cfg!(feature = "cuda") => Err(unavailable(missing("cuda"))),
        DeviceChoice::Metal if !cfg!(feature = "metal") => Err(unavailable(missing("metal"))),
        DeviceChoice::Cuda(index) => Device::new_cuda(index).map_err(broken),
        DeviceChoice::Metal => Device::new_metal(0).map_err(broken),
    }
}

// All work happens in the finish step, because a model without segments never waits. Each row runs by itself, because candle's
// products of several rows round differently from products of one row.

/// A loaded Hugging Face model.
pub struct TokenModel {
    card: Card,
    network: Box<dyn Network>,
    device: Device,
    /// Threads of candle's products on the CPU.
    threads: ThreadPool,
    shape: MemoryShape,
    budget: Arc<Budget>,
    /// Cost of the weights of a token, without its memory.
    weights: StepCost,
    logits: StepCost,
    /// Multiply-adds per key, or of the recurrence.
    memory_products: usize,
}

impl Model for TokenModel {
    fn card(&self) -> &Card {
        &self.card
    }

    fn begin(&self, boundaries: BoundaryOptions) -> Result<Box<dyn State>> {
        check_mode(&boundaries, &self.card)?;
        Ok(Box::new(TokenState::new(Memory::new(self.shape, self.budget.clone()))))
    }

    fn symbol_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        for &index in which {
            let row = &mut rows[index];
            check_feed(&self.card, row, state_ref::<TokenState>(&*row.state)?.is_ready())?;
            self.card.vocabulary.check_ids("feed", &row.feed)?;
            let state: &mut TokenState = state_mut(&mut *row.state)?;
            state.history.extend_from_slice(&row.feed);
            state.flight = row.feed.len();
            set_fed(row);
        }
        Ok(())
    }

    fn finish_step(&self, rows: &mut [SequenceRow], which: &[usize], _: &mut Scratch) -> Result<()> {
        let unfinished = |rows: &[SequenceRow], index: usize| rows[index].status == StepStatus::Unfinished;
        self.threads.install(|| {
            for &index in which {
                if unfinished(rows, index) {
                    self.compute(&mut rows[index])?;
                }
            }
            Ok(())
        })
    }

    fn bytes_for(&self, symbols: usize) -> usize {
        self.shape.bytes_for(symbols)
    }

    fn growth(&self, state: &dyn State, more: usize) -> usize {
        // the step rejects another model's state
        state_ref::<TokenState>(state).map_or(0, |state| state.memory.growth(state.len() + more))
    }

    fn memory(&self) -> KvMemory {
        KvMemory { in_use: self.budget.in_use(), limit: self.budget.limit }
    }

    fn cost(&self, symbols: usize, _: usize) -> Cost {
        let products = match self.shape {
            MemoryShape::Keys { .. } => self.memory_products * symbols,
            MemoryShape::Recurrent { .. } => self.memory_products,
        };
        let memory = StepCost { shared_bytes: 0, own_bytes: self.shape.step_bytes(symbols), multiply_adds: products };
        let mut cost = Cost { symbol: self.weights, logits: self.logits, ..Cost::default() };
        cost.symbol += memory;
        cost
    }
}

impl TokenModel {
    /// Computes a row's tokens in flight, block by block, and its wanted logits. Without these, the last tokens wait.
    fn compute(&self, row: &mut SequenceRow) -> Result<()> {
        let wanted = row.wanted();
        let state: &mut TokenState = state_mut(&mut *row.state)?;
        let total = state.len();
        let first_wanted = total - wanted;
        let target = if wanted == 0 { total / BLOCK * BLOCK } else { total };
        row.logits.clear();
        while state.memory.len() < target {
            let from = state.memory.len();
            let to = ((from / BLOCK + 1) * BLOCK).min(target);
            let tokens = Tensor::new(state.tokens(from, to), &self.device).map_err(failed)?;
            let wanted = to.saturating_sub(first_wanted.max(from));
            let computed = self.network.forward(&tokens, &state.memory, wanted).map_err(failed)?;
            if let Some(logits) = computed.logits {
                let logits = logits.flatten_all().and_then(|logits| logits.to_vec1::<f32>()).map_err(failed)?;
                row.logits.extend(logits); // (wanted, V)
            }
            state.memory.store(computed.layers, to - from)?;
            if state.blockwise == from && to - from == BLOCK {
                state.blockwise = to;
            }
        }
        state.land();
        row.status = StepStatus::Ready;
        Ok(())
    }
}

/// Largest difference between two logits of the same tokens that were computed in other steps. The products of random models of up
/// to 0.1 billion parameters differ by less than a tenth of it.
const TOLERANCE: f32 = 1e-3;

#[derive(Debug)]
struct TokenBlueprint {
    architecture: Box<dyn Architecture>,
}

/// Reads the architecture that `model_type` names. Fails if it is unknown, a key is invalid, or no tokenizer fits.
pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    #[derive(Deserialize)]
    struct ModelType {
        model_type: String,
    }
    let keys = Keys { text: config.architecture(), file };
    let ModelType { model_type } = keys.parse()?;
    let Some((_, read)) = ARCHITECTURES.iter().find(|(name, _)| *name == model_type) else {
        let known: Vec<_> =
            ARCHITECTURES.iter().map(|(name, _)| *name).chain(T5_MODEL_TYPES).chain([BLT_MODEL_TYPE]).collect();
        let expected = format!(
            "one of {}, which weir reads as they are, or gpt2, which `weir convert` reads (docs/models.md)",
            known.join(", ")
        );
        return keys.fail("model_type", expected, format!("a Hugging Face model of type {}", quoted(&model_type)));
    };
    keys.unquantized()?;
    let architecture = read(&keys)?;
    if config.subwords().is_none() {
        let expected = "a tokenizer in Hugging Face's format";
        let tokenizer = file.with_file_name(TOKENIZER_FILE);
        let found = tokenizer.parent().map_or_else(String::new, contents);
        let found = format!("no file; {found}; {DOWNLOAD}");
        return Err(Error::checkpoint(tokenizer, "the file", expected, found));
    }
    config.vocabulary(file)?;
    Ok(Box::new(TokenBlueprint { architecture }))
}

impl Blueprint for TokenBlueprint {
    fn tensors(&self) -> Vec<TensorSpec> {
        self.architecture.tensors()
    }

    fn shape(&self) -> String {
        self.architecture.shape()
    }

    fn reads_tokens(&self) -> bool {
        true
    }

    fn exactness(&self) -> Exactness {
        Exactness::Within(TOLERANCE)
    }

    fn bounds(&self) -> Bounds {
        self.architecture.bounds()
    }

    fn build(&self, parts: Parts) -> Result<Arc<dyn Model>> {
        let dtype = parts.settings.dtype;
        if dtype != Dtype::F32 {
            return Err(Error::bad_option("--dtype", dtype.name(), "f32 (a Hugging Face model computes in f32)"));
        }
        let card = parts.card(FAMILY, self)?;
        let device = open(parts.settings.device)?;
        let threads = rayon::ThreadPoolBuilder::new().num_threads(parts.settings.threads);
        let threads = threads.thread_name(|index| format!("candle-{index}")).build();
        let threads = threads.map_err(|error| Error::NoThread { work: "candle", source: io::Error::other(error) })?;
        let mut tensors = Tensors { weights: parts.weights, device: device.clone() };
        let network = self.architecture.build(&mut tensors)?;
        let (weights, logits) = self.cost();
        let budget = Budget::new(parts.settings.memory_bytes);
        Ok(Arc::new(TokenModel {
            card,
            network,
            device,
            threads,
            shape: self.architecture.memory(),
            budget,
            weights,
            logits,
            memory_products: self.architecture.memory_products(),
        }))
    }
}

impl TokenBlueprint {
    /// Returns the cost of a token's weights: in the layers, and of its logits.
    fn cost(&self) -> (StepCost, StepCost) {
        let mut layers = StepCost::default();
        let mut logits = StepCost::default();
        for tensor in self.tensors() {
            let numbers = tensor.numbers();
            let products = if tensor.shape.len() > 1 { numbers } else { 0 };
            let cost = StepCost { shared_bytes: numbers * size_of::<f32>(), own_bytes: 0, multiply_adds: products };
            if tensor.name == self.architecture.head() {
                logits += cost;
            } else if tensor.name != self.architecture.embedding() {
                layers += cost;
            }
        }
        (layers, logits)
    }
}
