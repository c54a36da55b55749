//! The tensors that text models take and give. Each has one element; elements are bytes as the protocol packs them: a number
//! little-endian, an element of BYTES behind its length in four bytes.

use crate::error::{Error, Result, clip};
use weir_proto::inference::{
    DataType, InferTensorContents, ModelInferRequest, ModelInferResponse, model_infer_request::InferInputTensor,
    model_infer_response::InferOutputTensor,
};

/// Bytes of a caller's own words that a message repeats.
const WORD_BYTES: usize = 64;
/// Bytes of the length before an element of BYTES.
const LENGTH_BYTES: usize = 4;

/// What elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text.
    Bytes,
    /// Yes or no.
    Bool,
    /// A count.
    Uint32,
    /// A number.
    Fp32,
}

impl Kind {
    /// As tensors name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "BYTES",
            Self::Bool => "BOOL",
            Self::Uint32 => "UINT32",
            Self::Fp32 => "FP32",
        }
    }

    /// As configurations do.
    pub(super) fn configured(self) -> DataType {
        match self {
            Self::Bytes => DataType::TypeString,
            Self::Bool => DataType::TypeBool,
            Self::Uint32 => DataType::TypeUint32,
            Self::Fp32 => DataType::TypeFp32,
        }
    }
}

/// What is taken. All but the text may be absent.
pub(super) const INPUTS: [(&str, Kind); 9] = [
    (TEXT_INPUT, Kind::Bytes),
    (STREAM, Kind::Bool),
    (SAMPLING_PARAMETERS, Kind::Bytes),
    (EXCLUDE_INPUT, Kind::Bool),
    ("return_finish_reason", Kind::Bool),
    ("return_cumulative_logprob", Kind::Bool),
    ("return_logprobs", Kind::Bool),
    ("return_num_input_tokens", Kind::Bool),
    ("return_num_output_tokens", Kind::Bool),
];
pub(super) const TEXT_INPUT: &str = "text_input";
pub(super) const STREAM: &str = "stream";
pub(super) const SAMPLING_PARAMETERS: &str = "sampling_parameters";
pub(super) const EXCLUDE_INPUT: &str = "exclude_input_in_output";
/// What an output is called when it is asked for by an input.
pub(super) const RETURN: &str = "return_";

/// What is given. The text always, the others if they are asked for.
pub(super) const OUTPUTS: [(&str, Kind); 6] = [
    ("text_output", Kind::Bytes),
    ("finish_reason", Kind::Bytes),
    ("cumulative_logprob", Kind::Fp32),
    ("logprobs", Kind::Bytes),
    ("num_input_tokens", Kind::Uint32),
    ("num_output_tokens", Kind::Uint32),
];

/// An input's element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Element {
    Text(String),
    Flag(bool),
}

/// The inputs that are there, by their names.
pub(super) struct Inputs(Vec<(&'static str, Element)>);

impl Inputs {
    /// Of a request, whose tensors are taken out of it.
    ///
    /// # Errors
    /// The first that is not as it must be.
    pub(super) fn take(request: &mut ModelInferRequest) -> Result<Self> {
        let tensors = std::mem::take(&mut request.inputs);
        let raw = std::mem::take(&mut request.raw_input_contents);
        if !raw.is_empty() && raw.len() != tensors.len() {
            let bound = format!("{}, one for each input, or none at all", tensors.len());
            return Err(wrong("raw_input_contents", format!("{} entries", raw.len()), &bound));
        }
        let mut found: Vec<(&'static str, Element)> = Vec::new();
        let mut raw = raw.into_iter();
        for tensor in tensors {
            let known = INPUTS.iter().find(|(name, _)| *name == tensor.name);
            let &(name, kind) = known.ok_or_else(|| unknown("inputs", &tensor.name, &INPUTS))?;
            if found.iter().any(|(other, _)| *other == name) {
                return Err(wrong(name, "a second tensor of this name".into(), "one"));
            }
            check(&tensor, name, kind)?;
            found.push((name, element(tensor.contents, raw.next(), name, kind)?));
        }
        Ok(Self(found))
    }

    /// The text of that name.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.0.iter_mut().find(|(other, _)| *other == name).and_then(|(_, element)| match element {
            Element::Text(text) => Some(std::mem::take(text)),
            Element::Flag(_) => None,
        })
    }

    /// The flag of that name.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.0.iter().find(|(other, _)| *other == name).and_then(|(_, element)| match element {
            Element::Flag(flag) => Some(*flag),
            Element::Text(_) => None,
        })
    }
}

/// Type and shape, and that its elements are in the message.
fn check(tensor: &InferInputTensor, name: &'static str, kind: Kind) -> Result<()> {
    if tensor.datatype != kind.name() {
        return Err(wrong(name, format!("the datatype {:?}", clip(&tensor.datatype, WORD_BYTES)), kind.name()));
    }
    if !matches!(tensor.shape[..], [1] | [1, 1]) {
        let shape = clip(&format!("{:?}", &tensor.shape[..tensor.shape.len().min(WORD_BYTES)]), WORD_BYTES);
        return Err(wrong(name, format!("the shape {shape}"), "[1] or [1, 1]"));
    }
    if tensor.parameters.keys().any(|key| key.starts_with("shared_memory")) {
        return Err(wrong(name, "elements in shared memory".into(), "elements in the message"));
    }
    Ok(())
}

fn element(
    contents: Option<InferTensorContents>,
    raw: Option<Vec<u8>>,
    name: &'static str,
    kind: Kind,
) -> Result<Element> {
    let contents = contents.filter(|contents| *contents != InferTensorContents::default());
    if let Some(raw) = raw {
        if contents.is_some() {
            return Err(wrong(name, "contents beside raw_input_contents".into(), "one of the two"));
        }
        return if kind == Kind::Bool { raw_flag(&raw, name) } else { raw_text(raw, name) };
    }
    let contents = contents.unwrap_or_default();
    if kind == Kind::Bool {
        return match contents.bool_contents[..] {
            [flag] => Ok(Element::Flag(flag)),
            _ => Err(wrong(name, format!("{} elements in bool_contents", contents.bool_contents.len()), "1")),
        };
    }
    let [bytes] = <[_; 1]>::try_from(contents.bytes_contents)
        .map_err(|all| wrong(name, format!("{} elements in bytes_contents", all.len()), "1"))?;
    text(bytes, name)
}

fn raw_flag(raw: &[u8], name: &'static str) -> Result<Element> {
    match raw {
        [0] => Ok(Element::Flag(false)),
        [1] => Ok(Element::Flag(true)),
        [other] => Err(wrong(name, format!("the byte {other}"), "0 or 1")),
        _ => Err(wrong(name, format!("{} bytes of raw contents", raw.len()), "1")),
    }
}

fn raw_text(mut raw: Vec<u8>, name: &'static str) -> Result<Element> {
    let Some((length, rest)) = raw.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(wrong(name, format!("{} bytes of raw contents", raw.len()), "4 for the length, and the text"));
    };
    let length = u32::from_le_bytes(*length);
    if usize::try_from(length) != Ok(rest.len()) {
        let found = format!("{} bytes of text behind the length {length}", rest.len());
        return Err(wrong(name, found, "as many as the length says: one element, and nothing else"));
    }
    raw.drain(..LENGTH_BYTES);
    text(raw, name)
}

fn text(bytes: Vec<u8>, name: &'static str) -> Result<Element> {
    String::from_utf8(bytes).map(Element::Text).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        wrong(name, format!("the byte at {at}, which does not continue UTF-8,"), "UTF-8")
    })
}

/// An option that is not as it must be.
pub(super) fn wrong(field: &'static str, found: String, bound: &str) -> Error {
    Error::BadOption { field, found, bound: bound.into() }
}

/// A tensor that there is not.
pub(super) fn unknown(field: &'static str, name: &str, known: &[(&str, Kind)]) -> Error {
    let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
    wrong(field, format!("{:?}", clip(name, WORD_BYTES)), &format!("one of {}", known.join(", ")))
}

/// Adds an output of one element.
pub(super) fn put(response: &mut ModelInferResponse, output: &str, element: Value<'_>) {
    let (kind, bytes) = match element {
        Value::Text(text) => {
            // a message that long is none: lengths of texts are bounded
            let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
            (Kind::Bytes, [&length.to_le_bytes()[..], text.as_bytes()].concat())
        }
        Value::Count(count) => (Kind::Uint32, u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes().to_vec()),
        Value::Number(number) => (Kind::Fp32, (number as f32).to_le_bytes().to_vec()),
    };
    let (name, datatype) = (output.to_owned(), kind.name().to_owned());
    response.outputs.push(InferOutputTensor { name, datatype, shape: vec![1], ..Default::default() });
    response.raw_output_contents.push(bytes);
}

/// An output's element.
pub(super) enum Value<'a> {
    Text(&'a str),
    Count(u64),
    Number(f64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
        let (name, datatype, shape) = (name.into(), datatype.into(), shape.to_vec());
        InferInputTensor { name, datatype, shape, ..Default::default() }
    }

    fn raw(inputs: Vec<InferInputTensor>, raw: &[&[u8]]) -> Result<Inputs> {
        let raw_input_contents = raw.iter().map(|raw| raw.to_vec()).collect();
        Inputs::take(&mut ModelInferRequest { inputs, raw_input_contents, ..Default::default() })
    }

    fn refused(inputs: Vec<InferInputTensor>, contents: &[&[u8]]) -> String {
        raw(inputs, contents).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn both_forms_of_contents_are_read() {
        let mut inputs = raw(
            vec![tensor("text_input", "BYTES", &[1]), tensor("stream", "BOOL", &[1, 1])],
            &[b"\x03\0\0\0a b", &[1]],
        )
        .unwrap();
        assert_eq!((inputs.text("text_input"), inputs.flag("stream")), (Some("a b".into()), Some(true)));
        let contents = InferTensorContents { bytes_contents: vec![b"a b".to_vec()], ..Default::default() };
        let typed = InferInputTensor { contents: Some(contents), ..tensor("text_input", "BYTES", &[1, 1]) };
        let mut inputs = raw(vec![typed], &[]).unwrap();
        assert_eq!((inputs.text("text_input"), inputs.flag("stream")), (Some("a b".into()), None));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_bound() {
        let text = || tensor("text_input", "BYTES", &[1]);
        for (inputs, contents, told) in [
            (
                vec![tensor("image", "BYTES", &[1])],
                &[&b""[..]][..],
                "inputs: \"image\" is out of bounds: one of text_input",
            ),
            (vec![text()], &[b"", b""], "raw_input_contents: 2 entries is out of bounds: 1, one for each"),
            (vec![text(), text()], &[b"\0\0\0\0", b""], "text_input: a second tensor"),
            (
                vec![tensor("text_input", "INT32", &[1])],
                &[b""],
                "text_input: the datatype \"INT32\" is out of bounds: BYTES",
            ),
            (
                vec![tensor("text_input", "BYTES", &[2])],
                &[b""],
                "text_input: the shape [2] is out of bounds: [1] or [1, 1]",
            ),
            (vec![tensor("text_input", "BYTES", &[])], &[b""], "text_input: the shape [] is"),
            (vec![tensor("text_input", "BYTES", &[-1])], &[b""], "text_input: the shape [-1] is"),
            (vec![text()], &[b"\x01\0"], "text_input: 2 bytes of raw contents"),
            (vec![text()], &[b"\x05\0\0\0a"], "text_input: 1 bytes of text behind the length 5"),
            (vec![text()], &[b"\x01\0\0\0a\x01\0\0\0b"], "text_input: 6 bytes of text behind the length 1"),
            (vec![text()], &[b"\x02\0\0\0a\xff"], "text_input: the byte at 1"),
            (vec![text()], &[], "text_input: 0 elements in bytes_contents is out of bounds: 1"),
            (vec![tensor("stream", "BOOL", &[1])], &[&[7]], "stream: the byte 7 is out of bounds: 0 or 1"),
            (vec![tensor("stream", "BOOL", &[1])], &[&[0, 0]], "stream: 2 bytes of raw contents"),
            (vec![tensor("stream", "BOOL", &[1])], &[], "stream: 0 elements in bool_contents"),
        ] {
            let refused = refused(inputs, contents);
            assert!(refused.starts_with(told), "{refused}");
        }
    }
}
