//! A Hugging Face checkpoint as a [`Blueprint`]: its tensors, its limits, and how the model is built.

use super::{
    architecture::Architecture,
    device,
    keys::Keys,
    layers::Tensors,
    memory::Budget,
    model::TokenModel,
    table::{ARCHITECTURES, model_types},
};
use crate::{
    decode::{
        contract::{Exactness, Model},
        cost::StepCost,
    },
    error::{Error, Result, quoted},
    family::{
        Blueprint, Parts, TensorSpec,
        checkpoint::{
            Config,
            folder::contents,
            hugging_face::{FAMILY, T5_MODEL_TYPES, explain_missing_key},
            reader::shapes_in,
        },
        settings::Bounds,
    },
    kernels::Dtype,
    text::subwords::TOKENIZER_FILE,
};
use serde::Deserialize;
use std::{collections::HashMap, path::Path, sync::Arc};

/// Largest difference between two logits of the same tokens that were computed in other steps. The products of random models of up
/// to 0.1 billion parameters differ by less than a tenth of it.
const TOLERANCE: f32 = 1e-3;

/// The matrix of logits. If the head is tied, it is a copy of the embedding that some versions of transformers wrote.
const HEAD: &str = "lm_head.weight";
/// Ends of the names of constants that some versions of transformers wrote.
const CONSTANTS: [&str; 3] = [".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"];

/// Numbers in unused tensors that any model may have: the masks of 64 layers with 1,024 positions.
const MAX_CONSTANTS: usize = 1 << 26;

/// A validated checkpoint.
#[derive(Debug)]
struct TokenBlueprint {
    architecture: Box<dyn Architecture>,
}

/// Reads the architecture that `model_type` names. Fails if it is unknown, a key is missing or out of bounds, the weights are
/// quantized, or there is no tokenizer that fits.
pub(crate) fn read(config: &Config, file: &Path) -> Result<Box<dyn Blueprint>> {
    #[derive(Deserialize)]
    struct ModelType {
        model_type: String,
    }
    let keys = Keys { text: config.architecture(), file };
    let ModelType { model_type } = keys.parse()?;
    let Some((_, read)) = ARCHITECTURES.iter().find(|(name, _)| *name == model_type) else {
        let known: Vec<_> = model_types().chain(T5_MODEL_TYPES).collect();
        let expected = format!(
            "one of {}, which weir reads as they are, or gpt2, which `weir convert` reads (docs/hugging-face.md)",
            known.join(", ")
        );
        return keys.fail("model_type", expected, format!("a Hugging Face model of type {}", quoted(&model_type)));
    };
    keys.unquantized()?;
    let dir = file.parent().unwrap_or(Path::new(""));
    let architecture = read(&keys).map_err(|error| explain_missing_key(error, dir))?;
    if config.subwords().is_none() {
        let expected = "a tokenizer in Hugging Face's format";
        let tokenizer = file.with_file_name(TOKENIZER_FILE);
        let found = tokenizer.parent().map_or_else(|| "no file".into(), |dir| format!("no file; {}", contents(dir)));
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

    /// Tensors that some versions of transformers wrote: constants, and a head that is tied to the embedding. They are read like
    /// the others. Fails if they have far more numbers than the tensors of the model.
    fn unused_tensors(&self, dir: &Path) -> Result<Vec<TensorSpec>> {
        let count = |tensors: &[TensorSpec]| tensors.iter().map(TensorSpec::numbers).fold(0, usize::saturating_add);
        let own = self.tensors();
        let limit = count(&own).saturating_add(MAX_CONSTANTS);
        let used: HashMap<String, Vec<usize>> = own.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect();
        let embedding = used.get(self.architecture.embedding());
        let mut unused = Vec::new();
        for (name, shape) in shapes_in(dir)? {
            if used.contains_key(&name) {
                continue;
            }
            let shape = match embedding {
                // the reader rejects a head of any other shape
                Some(embedding) if name == HEAD => embedding.clone(),
                _ if CONSTANTS.iter().any(|end| name.ends_with(end)) => shape,
                _ => continue,
            };
            unused.push(TensorSpec::unused(name, shape));
        }
        let found = count(&unused);
        match unused.iter().max_by_key(|tensor| tensor.numbers()) {
            Some(largest) if found > limit => {
                let expected = format!("at most {limit} numbers in all unused tensors");
                Err(Error::checkpoint(dir, &*largest.name, expected, found.to_string()))
            }
            _ => Ok(unused),
        }
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
        let device = device::open(parts.settings.device)?;
        let threads = rayon::ThreadPoolBuilder::new().num_threads(parts.settings.threads);
        let threads = threads.thread_name(|index| format!("candle-{index}")).build();
        let threads = threads.map_err(|error| Error::Internal(format!("threads of candle: {error}")))?;
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
