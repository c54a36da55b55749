//! A checkpoint's tensors in f64, and the operations on them that several families use.

use candle_core::{D, DType, Device, Result as CandleResult, Tensor, bail, safetensors::Load};
use safetensors::{
    Dtype as StoredDtype,
    tensor::{TensorInfo, TensorView},
};
use serde_json::Value;
use std::{collections::HashMap, ops::Range, path::Path};
use weir_kernels::Dtype;
use weir_kernels::error::{Error, Result};
use weir_kernels::linear::stored_weights;
use weir_models::checkpoint::{CheckpointSource, Tensor as LoadedTensor, Weights, weights};
use weir_models::load::{self, weights_in_place};
use weir_models::nn::{Activation, pooling::Pooling};

/// The tensors of a checkpoint, by name.
pub(super) struct Tensors {
    all: HashMap<String, Tensor>,
    /// The matrices that [`matrix`](Self::matrix) multiplies with in place of the checkpoint's: see [`stored_as`](Self::stored_as).
    stored: HashMap<String, Tensor>,
}

impl Tensors {
    /// Reads all tensors of a checkpoint. Fails if a file cannot be read.
    pub(super) fn read(source: &CheckpointSource) -> Result<Self> {
        Ok(Self { all: read_tensors(source, DType::F64)?, stored: HashMap::new() })
    }

    /// Converts tensors that were read. Fails if candle cannot convert them.
    pub(super) fn of(weights: &Weights, source: &CheckpointSource) -> Result<Self> {
        Ok(Self { all: loaded(weights, source, DType::F64)?, stored: HashMap::new() })
    }

    /// Multiplies with the matrices as weir stores them, each in the type that `dtype` returns for its name. What differs then is not
    /// the rounding of weights. Fails if candle fails.
    pub(super) fn stored_as(mut self, dtype: impl Fn(&str) -> Dtype) -> CandleResult<Self> {
        for (name, tensor) in &self.all {
            let dtype = dtype(name);
            if let ([_, inputs], true) = (tensor.dims(), dtype != Dtype::F32) {
                let weights: Vec<f32> = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
                let rounded = stored_weights(dtype, &weights, *inputs);
                let rounded = Tensor::from_vec(rounded, tensor.dims(), &Device::Cpu)?.to_dtype(DType::F64)?;
                self.stored.insert(name.clone(), rounded);
            }
        }
        Ok(self)
    }

    /// Returns a tensor. Fails if the checkpoint has none of this name.
    pub(super) fn get(&self, name: &str) -> CandleResult<&Tensor> {
        match self.all.get(name) {
            Some(tensor) => Ok(tensor),
            None => bail!("the checkpoint has no tensor {name}"),
        }
    }

    /// Returns W·x + b for each row of `x`: (rows, inputs) → (rows, outputs).
    pub(super) fn linear(&self, name: &str, x: &Tensor) -> CandleResult<Tensor> {
        self.matrix(&format!("{name}.weight"), x)?.broadcast_add(self.get(&format!("{name}.bias"))?)
    }

    /// Returns W·x for each row of `x`; `name` is the whole name of W: (rows, inputs) → (rows, outputs).
    pub(super) fn matrix(&self, name: &str, x: &Tensor) -> CandleResult<Tensor> {
        let matrix = self.stored.get(name).map_or_else(|| self.get(name), Ok)?;
        x.contiguous()?.matmul(&matrix.t()?)
    }

    /// Returns the rows of a table: (ids, D).
    pub(super) fn rows(&self, name: &str, ids: &[u32]) -> CandleResult<Tensor> {
        self.get(name)?.index_select(&indices(ids)?, 0)
    }

    /// Returns the LayerNorm of each row: g·(x − mean)/√(variance + eps) + b.
    pub(super) fn layer_norm(&self, name: &str, x: &Tensor, eps: impl Into<f64>) -> CandleResult<Tensor> {
        let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let deviation = centred.sqr()?.mean_keepdim(D::Minus1)?.affine(1.0, eps.into())?.sqrt()?;
        let scaled = centred.broadcast_div(&deviation)?.broadcast_mul(self.get(&format!("{name}.weight"))?)?;
        scaled.broadcast_add(self.get(&format!("{name}.bias"))?)
    }

    /// Returns g·x/√(mean(x²) + eps) for each row.
    pub(super) fn rms_norm(&self, name: &str, x: &Tensor, eps: impl Into<f64>) -> CandleResult<Tensor> {
        let root = x.sqr()?.mean_keepdim(D::Minus1)?.affine(1.0, eps.into())?.sqrt()?;
        x.broadcast_div(&root)?.broadcast_mul(self.get(&format!("{name}.weight"))?)
    }
}

/// Converts tensors that were read from `source` to elements of `dtype`.
fn loaded(weights: &Weights, source: &CheckpointSource, dtype: DType) -> Result<HashMap<String, Tensor>> {
    let tensor = |tensor: &LoadedTensor| Tensor::from_slice(&tensor.numbers(), &*tensor.shape, &Device::Cpu);
    let read = weights.iter().map(|(name, read)| Ok((name.clone(), tensor(read)?))).collect();
    converted(&source.path(), read, dtype)
}

/// Reads all tensors of a checkpoint as elements of `dtype`. Fails if a file cannot be read.
pub(super) fn read_tensors(source: &CheckpointSource, dtype: DType) -> Result<HashMap<String, Tensor>> {
    if let Some(weights) = weights_in_place(source)? {
        return loaded(&weights, source, dtype);
    }
    let mut stored = StoredTensors::default();
    match source {
        CheckpointSource::Folder(folder) => {
            for shard in weights::shards(folder)? {
                let bytes = std::fs::read(&shard.file).map_err(Error::io(&shard.file))?;
                stored.add(&bytes, |name| shard.has(name)).map_err(|error| unreadable(&shard.file, &error))?;
            }
        }
        CheckpointSource::Embedded(checkpoint) => {
            stored.add(checkpoint.weights, |_| true).map_err(|error| unreadable(&source.path(), &error))?;
        }
    }
    // A file may have only the head of a tied embedding.
    let blueprint = load::blueprint(&source.config()?, &source.config_file())?;
    for spec in blueprint.tensors() {
        if let Some(why) = stored.unreadable.remove(&spec.name) {
            return Err(Error::checkpoint(source.path(), spec.name, "a tensor that candle reads", why));
        }
        if let Some(tied) = spec.tied_to.and_then(|name| stored.tensors.get(name)).cloned() {
            stored.tensors.entry(spec.name).or_insert(tied);
        }
    }
    converted(&source.path(), stored.scaled(), dtype)
}

/// The tensors of safetensors files, before int8 matrices are multiplied with their scales.
#[derive(Default)]
struct StoredTensors {
    tensors: HashMap<String, Tensor>,
    /// Names of the int8 matrices.
    int8: Vec<String>,
    /// The reasons for which tensors cannot be read, by the tensors' names.
    unreadable: HashMap<String, String>,
}

impl StoredTensors {
    /// Adds the tensors of a file that `is_used` selects.
    fn add(&mut self, file: &[u8], is_used: impl Fn(&str) -> bool) -> CandleResult<()> {
        let Some((length, rest)) = file.split_first_chunk() else { bail!("no header") };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some((header, data)) = rest.split_at_checked(length) else { bail!("a header beyond the end of the file") };
        let all: HashMap<String, Value> = serde_json::from_slice(header).map_err(candle_core::Error::wrap)?;
        for (name, info) in all.into_iter().filter(|(name, _)| is_used(name)) {
            match read_tensor(info, data) {
                Ok((dtype, tensor)) => {
                    if dtype == StoredDtype::I8 {
                        self.int8.push(name.clone());
                    }
                    self.tensors.insert(name, tensor);
                }
                // an error only if the model uses the tensor
                Err(error) => {
                    self.unreadable.insert(name, error.to_string());
                }
            }
        }
        Ok(())
    }

    /// Multiplies each row of an int8 matrix with its scale, in f32: (rows, columns) · (rows, 1).
    fn scaled(mut self) -> CandleResult<HashMap<String, Tensor>> {
        for name in self.int8 {
            let scales = self.tensors.remove(&format!("{name}_scale"));
            let (Some(integers), Some(scales)) = (self.tensors.get_mut(&name), scales) else {
                // No model uses integers without scales.
                self.tensors.remove(&name);
                continue;
            };
            *integers = integers.broadcast_mul(&scales.unsqueeze(1)?)?;
        }
        Ok(self.tensors)
    }
}

/// Reads the tensor that `info` describes from the file's bytes behind the header. Returns the type in which the file has it: candle has no
/// i8 type, so int8 tensors become f32. Fails for a type that safetensors or candle does not have, and for a place beyond the file.
fn read_tensor(info: Value, data: &[u8]) -> CandleResult<(StoredDtype, Tensor)> {
    let info: TensorInfo = serde_json::from_value(info).map_err(candle_core::Error::wrap)?;
    let TensorInfo { dtype, shape, data_offsets: (from, to) } = info;
    let length = data.len();
    let Some(bytes) = data.get(from..to) else { bail!("a place from byte {from} to {to} of {length}") };
    let view = TensorView::new(dtype, shape, bytes)?;
    let tensor = match dtype {
        StoredDtype::I8 => {
            let integers: Vec<f32> = view.data().iter().map(|byte| f32::from(byte.cast_signed())).collect();
            Tensor::from_vec(integers, view.shape(), &Device::Cpu)?
        }
        StoredDtype::F64 | StoredDtype::F32 | StoredDtype::F16 | StoredDtype::BF16 => view.load(&Device::Cpu)?,
        _ => bail!("elements of type {dtype:?}"),
    };
    Ok((dtype, tensor))
}

/// The error for a file that candle cannot read.
fn unreadable(file: &Path, error: &candle_core::Error) -> Error {
    Error::checkpoint(file, "the file", "safetensors that candle reads", error.to_string())
}

/// Converts the tensors that candle read from `file`.
fn converted(
    file: &Path,
    read: CandleResult<HashMap<String, Tensor>>,
    dtype: DType,
) -> Result<HashMap<String, Tensor>> {
    let converted = read
        .and_then(|tensors| tensors.into_iter().map(|(name, tensor)| Ok((name, tensor.to_dtype(dtype)?))).collect());
    converted.map_err(|error| unreadable(file, &error))
}

/// Applies a nonlinearity to each number.
pub(super) fn activate(activation: Activation, x: &Tensor) -> CandleResult<Tensor> {
    match activation {
        Activation::Gelu => x.gelu_erf(),
        // candle's `gelu` is the tanh approximation.
        Activation::GeluTanh => x.gelu(),
        Activation::Silu => x.silu(),
        Activation::Relu => x.relu(),
    }
}

pub(super) fn indices(ids: &[u32]) -> CandleResult<Tensor> {
    Tensor::new(ids, &Device::Cpu)
}

/// Returns the matrix (rows, columns) of the numbers that `number` gives by row and column.
pub(super) fn table(rows: usize, columns: usize, number: impl Fn(usize, usize) -> f64) -> CandleResult<Tensor> {
    let numbers: Vec<f64> = (0..rows)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .map(|(row, column)| number(row, column))
        .collect();
    Tensor::from_vec(numbers, (rows, columns), &Device::Cpu)
}

pub(super) fn softmax(scores: &Tensor) -> CandleResult<Tensor> {
    let shares = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    shares.broadcast_div(&shares.sum_keepdim(D::Minus1)?)
}

/// Returns the softmax of each row with one more score, of zero, whose share is left out ("softmax1").
pub(super) fn softmax_with_sink(scores: &Tensor) -> CandleResult<Tensor> {
    let max = scores.max_keepdim(D::Minus1)?.relu()?;
    let shares = scores.broadcast_sub(&max)?.exp()?;
    shares.broadcast_div(&(shares.sum_keepdim(D::Minus1)? + max.neg()?.exp()?)?)
}

/// Returns 1/(1 + e^−x) for each number.
pub(super) fn sigmoid(x: &Tensor) -> CandleResult<Tensor> {
    x.neg()?.exp()?.affine(1.0, 1.0)?.recip()
}

/// Returns ln(1 + e^x) for each number, without overflow.
pub(super) fn softplus(x: &Tensor) -> CandleResult<Tensor> {
    x.relu()? + x.abs()?.neg()?.exp()?.affine(1.0, 1.0)?.log()?
}

/// Convolves each channel with its taps, (taps, channels); the last tap belongs to the current position: (len, channels) → the same.
pub(super) fn convolve(x: &Tensor, taps: &Tensor) -> CandleResult<Tensor> {
    let width = taps.dim(0)?;
    let len = x.dim(0)?;
    let padded = x.pad_with_zeros(0, width - 1, 0)?; // (taps − 1 + len, channels)
    let mut sum = x.zeros_like()?;
    for tap in 0..width {
        sum = (sum + padded.narrow(0, tap, len)?.broadcast_mul(&taps.narrow(0, tap, 1)?)?)?;
    }
    Ok(sum)
}

/// Returns ln Σ e^x.
pub(super) fn log_sum_exp(x: &[f64]) -> f64 {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    x.iter().map(|x| (x - max).exp()).sum::<f64>().ln() + max
}

/// Returns the columns of one head: (rows, heads · head_dim) → (rows, head_dim).
pub(super) fn head_of(x: &Tensor, head: usize, head_dim: usize) -> CandleResult<Tensor> {
    x.narrow(1, head * head_dim, head_dim)?.contiguous()
}

/// Returns q·kᵀ: (queries, head_dim) and (keys, head_dim) → (queries, keys).
pub(super) fn products(queries: &Tensor, keys: &Tensor) -> CandleResult<Tensor> {
    queries.matmul(&keys.t()?)
}

/// Returns the outputs of all heads, (queries, heads · head_dim). `weights` turns the head's scores q·kᵀ, (queries, keys), into the
/// weights of its values.
pub(super) fn attend(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    head_dim: usize,
    weights: impl Fn(usize, Tensor) -> CandleResult<Tensor>,
) -> CandleResult<Tensor> {
    let head = |head: usize| {
        let scores = products(&head_of(queries, head, head_dim)?, &head_of(keys, head, head_dim)?)?;
        weights(head, scores)?.matmul(&head_of(values, head, head_dim)?) // (queries, head_dim)
    };
    let heads = queries.dim(1)? / head_dim;
    Tensor::cat(&(0..heads).map(head).collect::<CandleResult<Vec<_>>>()?, 1)
}

/// Returns 0 where a causal attention sees a key, −∞ elsewhere: (positions, positions).
pub(super) fn mask(positions: usize, sees: impl Fn(usize, usize) -> bool) -> CandleResult<Tensor> {
    table(positions, positions, |query, key| if sees(query, key) { 0.0 } else { f64::NEG_INFINITY })
}

/// Returns max(query − key, 0) for each pair: (positions, positions).
pub(super) fn distances(positions: usize) -> CandleResult<Tensor> {
    let distance = |query: u32, key: u32| query.saturating_sub(key);
    let positions = u32::try_from(positions).map_err(candle_core::Error::wrap)?;
    let all: Vec<u32> = (0..positions).flat_map(|query| (0..positions).map(move |key| distance(query, key))).collect();
    Tensor::from_vec(all, (positions as usize, positions as usize), &Device::Cpu)
}

/// Returns T5's bucket of each distance below `count`, as T5's code rounds in f32 (Raffel et al. 2020, §2.1). `buckets` are those
/// for earlier keys.
pub(super) fn t5_buckets(count: usize, buckets: usize, max_distance: usize) -> CandleResult<Vec<u32>> {
    let exact = buckets / 2;
    let distances = Tensor::arange(0u32, count as u32, &Device::Cpu)?.to_dtype(DType::F32)?;
    let range = (max_distance as f64 / exact as f64).ln();
    let far = (distances / exact as f64)?.log()?;
    let far = ((far / range)? * (buckets - exact) as f64)?.to_vec1::<f32>()?;
    let bucket = |(distance, far): (usize, f32)| match distance < exact {
        true => distance,
        false => (exact + far as usize).min(buckets - 1),
    };
    Ok(far.into_iter().enumerate().map(|pair| bucket(pair) as u32).collect())
}

/// Returns each pair's learned number, of one head: `bias` is (buckets, heads), `buckets` lists the bucket of each distance.
pub(super) fn bucket_bias(bias: &Tensor, head: usize, buckets: &[u32], distances: &Tensor) -> CandleResult<Tensor> {
    let by_distance = bias.narrow(1, head, 1)?.squeeze(1)?.contiguous()?.index_select(&indices(buckets)?, 0)?;
    by_distance.index_select(&distances.flatten_all()?, 0)?.reshape(distances.shape())
}

/// Returns the pooled vector of each closed segment: (len, D) → (segments, D), and `None` if no segment is closed.
pub(super) fn pool_segments(pooling: Pooling, x: &Tensor, ends: &[bool]) -> CandleResult<Option<Tensor>> {
    let segments = closed(ends);
    if segments.is_empty() {
        return Ok(None);
    }
    let weights = table(segments.len(), ends.len(), |segment, position| {
        let Range { start, end } = segments[segment];
        let pooled = match pooling {
            Pooling::Mean => end - start,
            Pooling::Last => 1,
            Pooling::Hops(hops) => hops.saturating_add(1).min(end - start),
        };
        if (end - pooled..end).contains(&position) { 1.0 / pooled as f64 } else { 0.0 }
    })?;
    weights.matmul(x).map(Some)
}

/// Returns the positions of each closed segment. `ends` is true at the last position of each.
pub(super) fn closed(ends: &[bool]) -> Vec<Range<usize>> {
    let mut start = 0;
    let mut segments = Vec::new();
    for (position, _) in ends.iter().enumerate().filter(|(_, ends)| **ends) {
        segments.push(start..position + 1);
        start = position + 1;
    }
    segments
}
