//! Input and output tensors of text models. Each has one element. Raw contents follow the protocol: numbers are little-endian, and
//! an element of BYTES follows its length in four bytes.

use weir_kernels::error::{Error, QUOTED_BYTES, Result, clip, quoted};
use weir_proto::inference::model_infer_request::InferInputTensor;
use weir_proto::inference::model_infer_response::InferOutputTensor;
use weir_proto::inference::{DataType, InferTensorContents, ModelInferRequest, ModelInferResponse};

/// Bytes of the length in front of an element of BYTES.
const LENGTH_BYTES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementType {
    /// Text.
    Bytes,
    /// A flag.
    Bool,
    /// A count.
    Uint32,
    /// A 32-bit float.
    Fp32,
}

impl ElementType {
    /// Returns the name in tensors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "BYTES",
            Self::Bool => "BOOL",
            Self::Uint32 => "UINT32",
            Self::Fp32 => "FP32",
        }
    }

    /// Returns the type in model configurations.
    pub(super) fn config_type(self) -> DataType {
        match self {
            Self::Bytes => DataType::TypeString,
            Self::Bool => DataType::TypeBool,
            Self::Uint32 => DataType::TypeUint32,
            Self::Fp32 => DataType::TypeFp32,
        }
    }
}

/// The supported inputs. Only the text is required.
pub(super) const INPUTS: [(&str, ElementType); 9] = [
    (TEXT_INPUT, ElementType::Bytes),
    (STREAM, ElementType::Bool),
    (SAMPLING_PARAMETERS, ElementType::Bytes),
    (EXCLUDE_INPUT, ElementType::Bool),
    ("return_finish_reason", ElementType::Bool),
    ("return_cumulative_logprob", ElementType::Bool),
    ("return_logprobs", ElementType::Bool),
    ("return_num_input_tokens", ElementType::Bool),
    ("return_num_output_tokens", ElementType::Bool),
];

pub(super) const TEXT_INPUT: &str = "text_input";

pub(super) const STREAM: &str = "stream";

pub(crate) const SAMPLING_PARAMETERS: &str = "sampling_parameters";

pub(super) const EXCLUDE_INPUT: &str = "exclude_input_in_output";

/// Prefix of the flags that select an output.
pub(super) const RETURN: &str = "return_";

/// The supported outputs. The text is the default.
pub(super) const OUTPUTS: [(&str, ElementType); 6] = [
    ("text_output", ElementType::Bytes),
    ("finish_reason", ElementType::Bytes),
    ("cumulative_logprob", ElementType::Fp32),
    ("logprobs", ElementType::Bytes),
    ("num_input_tokens", ElementType::Uint32),
    ("num_output_tokens", ElementType::Uint32),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Element {
    Text(String),
    Flag(bool),
}

/// The inputs of a request by name.
pub(super) struct Inputs(Vec<(&'static str, Element)>);

impl Inputs {
    /// Takes the tensors out of a request. Names, types and shapes of all are checked before the elements of any are read. Fails
    /// at the first invalid tensor.
    pub(super) fn take(request: &mut ModelInferRequest) -> Result<Self> {
        let tensors = std::mem::take(&mut request.inputs);
        let raw = std::mem::take(&mut request.raw_input_contents);
        if !raw.is_empty() && raw.len() != tensors.len() {
            let bound = format!("no entries or {} (one for each input)", tensors.len());
            return Err(Error::bad_option("raw_input_contents", raw.len().to_string(), bound));
        }
        let mut headers: Vec<(&'static str, ElementType)> = Vec::new();
        for tensor in &tensors {
            let known = INPUTS.iter().find(|(name, _)| *name == tensor.name);
            let &(name, kind) = known.ok_or_else(|| unknown_tensor("inputs", &tensor.name, &INPUTS))?;
            if headers.iter().any(|(other, _)| *other == name) {
                return Err(Error::bad_option(name, "a second one", "one tensor of this name"));
            }
            check(tensor, name, kind)?;
            headers.push((name, kind));
        }
        let mut raw = raw.into_iter();
        let elements = headers.into_iter().zip(tensors);
        let elements = elements
            .map(|((name, kind), tensor)| Ok((name, element(tensor.contents, raw.next(), name, kind)?)))
            .collect::<Result<_>>()?;
        Ok(Self(elements))
    }

    /// Takes the text of this name.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.0.iter_mut().find(|(other, _)| *other == name).and_then(|(_, element)| match element {
            Element::Text(text) => Some(std::mem::take(text)),
            Element::Flag(_) => None,
        })
    }

    /// Returns the flag of this name.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.0.iter().find(|(other, _)| *other == name).and_then(|(_, element)| match element {
            Element::Flag(flag) => Some(*flag),
            Element::Text(_) => None,
        })
    }
}

/// Checks type and shape, and that the elements are in the message.
fn check(tensor: &InferInputTensor, name: &'static str, kind: ElementType) -> Result<()> {
    if tensor.datatype != kind.name() {
        return Err(Error::bad_option(name, quoted(&tensor.datatype), format!("the datatype {}", kind.name())));
    }
    if !matches!(tensor.shape[..], [1] | [1, 1]) {
        let shape = clip(&format!("{:?}", &tensor.shape[..tensor.shape.len().min(QUOTED_BYTES)]), QUOTED_BYTES);
        return Err(Error::bad_option(name, shape, "the shape [1] or [1, 1]"));
    }
    if tensor.parameters.keys().any(|key| key.starts_with("shared_memory")) {
        return Err(Error::bad_option(name, "elements in shared memory", "elements in the message"));
    }
    Ok(())
}

fn element(
    contents: Option<InferTensorContents>,
    raw: Option<Vec<u8>>,
    name: &'static str,
    kind: ElementType,
) -> Result<Element> {
    let contents = contents.filter(|contents| *contents != InferTensorContents::default());
    if let Some(raw) = raw {
        if contents.is_some() {
            return Err(Error::bad_option(name, "both", "either contents or raw_input_contents"));
        }
        return if kind == ElementType::Bool { raw_flag(&raw, name) } else { raw_text(raw, name) };
    }
    let mut contents = contents.unwrap_or_default();
    let flags = std::mem::take(&mut contents.bool_contents);
    let texts = std::mem::take(&mut contents.bytes_contents);
    let has_others = contents != InferTensorContents::default();
    let wrong =
        |count: usize| Error::bad_option(name, count.to_string(), format!("one element of type {}", kind.name()));
    let mixed = || Error::bad_option(name, "elements of another type", format!("one element of type {}", kind.name()));
    if kind == ElementType::Bool {
        return match flags[..] {
            [flag] if texts.is_empty() && !has_others => Ok(Element::Flag(flag)),
            [] if texts.is_empty() && !has_others => Err(wrong(0)),
            [] | [_] => Err(mixed()),
            _ => Err(wrong(flags.len())),
        };
    }
    if has_others || !flags.is_empty() {
        return Err(mixed());
    }
    let [bytes] = <[_; 1]>::try_from(texts).map_err(|all| wrong(all.len()))?;
    text(bytes, name)
}

fn raw_flag(raw: &[u8], name: &'static str) -> Result<Element> {
    match raw {
        [0] => Ok(Element::Flag(false)),
        [1] => Ok(Element::Flag(true)),
        [other] => Err(Error::bad_option(name, other.to_string(), "the byte 0 or 1")),
        _ => Err(Error::bad_option(name, format!("{} bytes", raw.len()), "raw contents of one byte")),
    }
}

fn raw_text(mut raw: Vec<u8>, name: &'static str) -> Result<Element> {
    let Some((length, rest)) = raw.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(Error::bad_option(
            name,
            format!("{} bytes", raw.len()),
            "raw contents of at least 4 bytes (the first 4 state the text's length)",
        ));
    };
    let length = u32::from_le_bytes(*length);
    if usize::try_from(length) != Ok(rest.len()) {
        let bound = format!("one element of {length} bytes (its stated length)");
        return Err(Error::bad_option(name, rest.len().to_string(), bound));
    }
    raw.drain(..LENGTH_BYTES);
    text(raw, name)
}

fn text(bytes: Vec<u8>, name: &'static str) -> Result<Element> {
    String::from_utf8(bytes).map(Element::Text).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Error::bad_option(name, format!("an invalid sequence at byte {offset}"), "UTF-8")
    })
}

/// Builds the error of an unknown tensor.
pub(super) fn unknown_tensor(field: &'static str, name: &str, known: &[(&str, ElementType)]) -> Error {
    let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
    Error::bad_option(field, quoted(name), format!("one of {}", known.join(", ")))
}

/// Adds an output to a response.
pub(super) fn push_output(response: &mut ModelInferResponse, output: &str, value: OutputValue<'_>) {
    let (kind, bytes) = match value {
        OutputValue::Text(text) => {
            // Limits on messages keep texts far below 4 GiB.
            let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
            (ElementType::Bytes, [&length.to_le_bytes()[..], text.as_bytes()].concat())
        }
        OutputValue::Count(count) => {
            (ElementType::Uint32, u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes().to_vec())
        }
        OutputValue::Number(number) => (ElementType::Fp32, (number as f32).to_le_bytes().to_vec()),
    };
    let datatype = kind.name().to_owned();
    let tensor = InferOutputTensor { name: output.to_owned(), datatype, shape: vec![1], ..Default::default() };
    response.outputs.push(tensor);
    response.raw_output_contents.push(bytes);
}

pub(super) enum OutputValue<'a> {
    Text(&'a str),
    Count(u64),
    Number(f64),
}
