//! How a model is loaded: element type, instruction set, threads, limits of memory.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;
use weir_kernels::error::{Error, Result};
use weir_kernels::{Compute, Dtype, Isa, ThreadPool};

/// Hard limit on the symbols of a sequence, above all checkpoints' and flags' limits: some tables have this many entries.
pub const MAX_SYMBOLS: usize = 1 << 24;

/// Resources of a model. Entropy models share the threads and have the same limits.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Threads that share a step's work, the caller's included.
    pub threads: usize,
    /// Type that weights, keys and values are stored in.
    pub dtype: Dtype,
    /// Maximum symbols of one sequence, at most [`MAX_SYMBOLS`]. If `None`: [`MAX_SYMBOLS`] if windows limit the kept keys, else
    /// four training windows, but at least 8,192, and no more than the model can hold.
    pub max_symbols: Option<usize>,
    /// Bytes of key-value memory.
    pub memory_bytes: usize,
    /// Instruction set of the kernels: the widest that the processor has, except in tests.
    pub isa: Isa,
    /// True if a checkpoint whose card does not state the SHA-256 of its weights is refused.
    pub require_sha256: bool,
    /// Turns off the model's pooling. Loading fails for a model that cannot run without its pooling.
    pub unpooled: bool,
    /// Copies tables that stay in their files, such as the vectors of n-grams, into memory.
    pub copy_tables: bool,
    /// The device of Hugging Face models; other families run on the CPU.
    pub device: DeviceChoice,
    /// The thread pool, once started: models loaded with clones of the same settings share it.
    pub pool: Option<Arc<ThreadPool>>,
}

impl Default for Settings {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads,
            dtype: Dtype::F32,
            max_symbols: None,
            memory_bytes: 2 << 30,
            isa: Isa::detect(),
            require_sha256: false,
            unpooled: false,
            copy_tables: false,
            device: DeviceChoice::Cpu,
            pool: None,
        }
    }
}

impl Settings {
    /// Returns the settings with the thread pool started, for all models loaded with them or with clones of them.
    pub fn with_threads(mut self) -> Self {
        self.pool.get_or_insert_with(|| Arc::new(ThreadPool::new(self.threads)));
        self
    }

    /// Returns the threads and the instruction set for kernels. Starts threads if there is no pool yet.
    pub fn compute(&self) -> Compute {
        let pool = self.pool.clone().unwrap_or_else(|| Arc::new(ThreadPool::new(self.threads)));
        Compute { isa: self.isa, pool }
    }

    /// Maximum symbols of a sequence of a model without a limit of its own, trained on windows of `training_length`.
    pub fn max_symbols(&self, training_length: usize) -> usize {
        self.max_symbols.unwrap_or(training_length.saturating_mul(4).max(8192)).min(MAX_SYMBOLS)
    }

    /// Most symbols of a sequence of a model with such bounds; and the reason, if the limit is the model's own.
    pub fn longest(&self, training_length: usize, bounds: Bounds) -> Result<(usize, Option<&'static str>)> {
        match (self.max_symbols, bounds.longest) {
            (Some(requested), Some((limit, why))) if requested > limit => {
                let bound = format!("at most {limit} ({why})");
                Err(Error::BadOption { field: "--max-symbols", found: requested.to_string(), bound })
            }
            (None, None) if bounds.endless => Ok((MAX_SYMBOLS, None)),
            (_, longest) => {
                let default = self.max_symbols(training_length);
                Ok(match longest {
                    Some((limit, why)) if limit <= default => (limit, Some(why)),
                    _ => (default, None),
                })
            }
        }
    }
}

/// A device that Hugging Face models can run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The processor.
    Cpu,
    /// The CUDA device of this index.
    Cuda(usize),
    /// The first Metal device.
    Metal,
}

impl FromStr for DeviceChoice {
    type Err = String;

    /// Parses `cpu`, `cuda`, `cuda:N` or `metal`.
    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || "expected cpu, cuda, cuda:N or metal".to_owned();
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            None if text == "metal" => Ok(Self::Metal),
            Some(("cuda", index)) => index.parse().map(Self::Cuda).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

impl Display for DeviceChoice {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => formatter.write_str("cpu"),
            Self::Cuda(index) => write!(formatter, "cuda:{index}"),
            Self::Metal => formatter.write_str("metal"),
        }
    }
}

/// Limits of a model's sequences.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// Maximum symbols that the model can hold, and the reason; `None` if it has no limit.
    pub longest: Option<(usize, &'static str)>,
    /// True if a long sequence takes no more memory than a short one.
    pub endless: bool,
}
