//! Reads Python pickles and executes nothing.
//!
//! A pickle is a program for a small stack machine. This one has the stack and the memo, but no functions: a call becomes an
//! inert [`Object::Call`], and the callable must be on an allow-list. Objects live in an arena and refer to each other by index,
//! so neither depth nor cycles cost recursion. Everything is bounded. candle's reader is no substitute: it allocates a string's
//! stated length before it reads the string, and copies whole objects to and from the memo.

use std::{collections::HashMap, rc::Rc};

/// Maximum size of a pickle: a training checkpoint's, without its tensors, has some hundred kilobytes.
pub const MAX_BYTES: usize = 16 << 20;

/// Reason why a pickle was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: expected {expected}, found {found}")]
pub struct PickleError {
    /// Offset of the instruction in bytes.
    pub offset: usize,
    /// The expected item.
    pub expected: String,
    /// The actual item.
    pub found: String,
}

impl Pickle {
    /// Reads a pickle of protocol 2 to 5. Fails at anything unknown, malformed, truncated or beyond a limit.
    pub fn read(bytes: &[u8]) -> Result<Self, PickleError> {
        if bytes.len() > MAX_BYTES {
            let expected = format!("at most {MAX_BYTES} bytes");
            return Err(PickleError { offset: 0, expected, found: format!("{} bytes", bytes.len()) });
        }
        let mut machine = PickleMachine::new(bytes);
        match machine.run() {
            Ok(()) => Ok(machine.finish()),
            Err((expected, found)) => Err(PickleError { offset: machine.start, expected, found }),
        }
    }
}

/// A value on the stack.
#[derive(Debug, Clone, PartialEq)]
pub enum PickleValue {
    /// `None`
    None,
    /// `True`, `False`
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// A longer integer; nothing needs its digits.
    LongInt,
    /// A float.
    Float(f64),
    /// A string.
    Text(Rc<str>),
    /// Bytes; nothing needs them.
    Bytes,
    /// Anything made of other values, by its index in the arena.
    Object(usize),
}

impl PickleValue {
    /// Parses a two's complement little-endian integer of any length.
    fn from_long(bytes: &[u8]) -> Self {
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let fill = if negative { 0xff } else { 0 };
        let (head, tail) = bytes.split_at(bytes.len().min(8));
        let mut eight = [fill; 8];
        eight.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
        let number = i64::from_le_bytes(eight);
        let fits = tail.iter().all(|&byte| byte == fill) && (number < 0) == negative;
        if fits { Self::Int(number) } else { Self::LongInt }
    }
}

/// An object made of other values.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A name of the allow-list: module, name.
    Global(&'static str, &'static str),
    /// A tuple.
    Tuple(Vec<PickleValue>),
    /// A list or a set.
    List(Vec<PickleValue>),
    /// A dict, with all items of a repeated key.
    Dict(Vec<(PickleValue, PickleValue)>),
    /// A call that Python would have made; it is recorded, never made.
    Call(Box<PickleCall>),
    /// A reference to something outside the pickle: a tensor's storage.
    Persistent(PickleValue),
}

/// A recorded call.
#[derive(Debug, Clone, PartialEq)]
pub struct PickleCall {
    /// Module of the callable.
    pub module: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The tuple of arguments, by reference: a hostile pickle could ask for a million copies.
    pub arguments: PickleValue,
    /// The value from which Python would have set its attributes.
    pub state: Option<PickleValue>,
    /// Items that would have been set: `x[key] = value`.
    pub items: Vec<(PickleValue, PickleValue)>,
    /// Items that would have been appended.
    pub appended: Vec<PickleValue>,
}

/// A pickle that was read.
#[derive(Debug)]
pub struct Pickle {
    objects: Vec<Object>,
    /// The pickle's value.
    pub root: PickleValue,
}

impl Pickle {
    /// Returns the object that a value refers to.
    pub fn object(&self, value: &PickleValue) -> Option<&Object> {
        if let PickleValue::Object(index) = value { self.objects.get(*index) } else { None }
    }

    /// Returns the elements of a tuple or list.
    pub fn elements(&self, value: &PickleValue) -> Option<&[PickleValue]> {
        match self.object(value)? {
            Object::Tuple(elements) | Object::List(elements) => Some(elements),
            _ => None,
        }
    }

    /// Returns the items of a dict or of a dict-like object (`OrderedDict`).
    pub fn items(&self, value: &PickleValue) -> Option<&[(PickleValue, PickleValue)]> {
        match self.object(value)? {
            Object::Dict(items) => Some(items),
            Object::Call(call) if call.module == "collections" => Some(&call.items),
            _ => None,
        }
    }

    /// Returns the call that a value refers to.
    pub fn call(&self, value: &PickleValue) -> Option<&PickleCall> {
        if let Some(Object::Call(call)) = self.object(value) { Some(call) } else { None }
    }

    /// Returns a dict's item by name; the last one, as in Python, if it was set twice.
    pub fn item<'a>(&'a self, dict: &PickleValue, name: &str) -> Option<&'a PickleValue> {
        let found =
            self.items(dict)?.iter().rev().find(|(key, _)| matches!(key, PickleValue::Text(text) if **text == *name));
        found.map(|(_, value)| value)
    }

    /// Describes a value in a few words, for messages.
    pub fn describe(&self, value: &PickleValue) -> String {
        match value {
            PickleValue::Object(_) => match self.object(value) {
                Some(Object::Global(module, name)) => format!("the name {module}.{name}"),
                Some(Object::Tuple(elements)) => format!("a tuple of {}", elements.len()),
                Some(Object::List(elements)) => format!("a list of {}", elements.len()),
                Some(Object::Dict(items)) => format!("a dict of {}", items.len()),
                Some(Object::Call(call)) => format!("a {}.{}", call.module, call.name),
                Some(Object::Persistent(_)) => "a storage".into(),
                None => "nothing".into(),
            },
            PickleValue::Text(text) if text.len() > 60 => format!("a string of {} bytes", text.len()),
            PickleValue::Text(text) => format!("{text:?}"),
            PickleValue::Bool(value) => value.to_string(),
            PickleValue::Int(value) => value.to_string(),
            PickleValue::Float(value) => value.to_string(),
            PickleValue::None => "None".into(),
            PickleValue::LongInt => "an integer of more than 64 bits".into(),
            PickleValue::Bytes => "bytes".into(),
        }
    }
}

/// Maximum instructions, which also limits values on the stack and in containers.
const MAX_STEPS: usize = 4 << 20;

const MAX_OBJECTS: usize = 1 << 20;

/// Maximum open marks: nesting of literals.
const MAX_MARKS: usize = 1000;

/// Names that a pickle may use; the machine calls none of them. Any other name is an error.
const GLOBALS: &[(&str, &[&str])] = &[
    ("argparse", &["Namespace"]),
    ("collections", &["OrderedDict", "Counter", "defaultdict"]),
    ("builtins", &["dict", "list", "set", "frozenset", "bytearray", "complex", "int", "float"]),
    ("__builtin__", &["dict", "list", "set", "frozenset", "bytearray", "complex", "int", "float"]),
    ("_codecs", &["encode"]),
    ("numpy", &["dtype", "ndarray"]),
    ("numpy.core.multiarray", &["scalar", "_reconstruct"]),
    ("numpy._core.multiarray", &["scalar", "_reconstruct"]),
    ("pathlib", &["PosixPath", "PurePosixPath", "Path"]),
    ("torch", &["Size", "device", "FloatStorage", "HalfStorage", "BFloat16Storage", "DoubleStorage", "LongStorage"]),
    ("torch", &["IntStorage", "ShortStorage", "CharStorage", "ByteStorage", "BoolStorage"]),
    ("torch", &["float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool"]),
    ("torch._utils", &["_rebuild_tensor_v2", "_rebuild_parameter"]),
    ("utils.vocabulary", &["Vocab"]),
];

/// Expected, found.
type Mismatch = (String, String);

fn wrong<T>(expected: impl Into<String>, found: impl Into<String>) -> Result<T, Mismatch> {
    Err((expected.into(), found.into()))
}

/// The machine and the program it reads.
#[derive(Default)]
struct PickleMachine<'a> {
    bytes: &'a [u8],
    /// Offset of the next byte.
    offset: usize,
    /// Offset of the current instruction.
    start: usize,
    objects: Vec<Object>,
    stack: Vec<PickleValue>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, PickleValue>,
}

impl<'a> PickleMachine<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, ..Self::default() }
    }

    fn finish(mut self) -> Pickle {
        Pickle { root: self.stack.pop().unwrap_or(PickleValue::None), objects: self.objects }
    }

    fn run(&mut self) -> Result<(), Mismatch> {
        match self.byte()? {
            0x80 => self.protocol()?,
            byte => return wrong("a pickle (first byte 0x80)", format!("0x{byte:02x}")),
        }
        for _ in 0..MAX_STEPS {
            self.start = self.offset;
            let code = self.byte()?;
            if code == b'.' {
                return self.stop();
            }
            self.step(code)?;
        }
        wrong(format!("at most {MAX_STEPS} instructions"), "more")
    }

    fn stop(&mut self) -> Result<(), Mismatch> {
        if self.offset != self.bytes.len() {
            return wrong("the end of the file", format!("{} more bytes", self.bytes.len() - self.offset));
        }
        match (self.stack.len(), self.marks.len()) {
            (1, 0) => Ok(()),
            (values, marks) => wrong("one value at the end", format!("{values} values and {marks} open marks")),
        }
    }

    /// Executes one instruction. The letters are Python's; `pickletools.py` has their names.
    fn step(&mut self, code: u8) -> Result<(), Mismatch> {
        match code {
            0x80 => self.protocol(),
            0x95 => self.frame(),
            b'(' => self.mark(),
            b'0' => self.pop().map(|_| ()),
            b'1' => self.since_mark().map(|_| ()),
            b'2' => self.top().cloned().map(|value| self.stack.push(value)),
            b'N' | 0x88 | 0x89 | b'J' | b'K' | b'M' | 0x8a | 0x8b | b'G' => self.scalar(code),
            b'X' | 0x8c | 0x8d | b'T' | b'U' => self.text(code),
            b'B' | b'C' | 0x8e | 0x96 => self.opaque_bytes(code),
            b']' | b')' | b'}' | 0x8f | b't' | b'l' | b'd' | 0x91 | 0x85..=0x87 => self.container(code),
            b'a' | b'e' | 0x90 => self.append(code),
            b's' | b'u' => self.set_items(code),
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memorise(code),
            b'c' | 0x93 => self.global(code),
            b'i' => self.instance(),
            b'R' | 0x81 | 0x92 => self.call(code),
            b'b' => self.build(),
            b'Q' => {
                let id = self.pop()?;
                self.push(Object::Persistent(id))
            }
            _ => wrong("an instruction that reads data", format!("0x{code:02x} ({:?})", char::from(code))),
        }
    }

    fn protocol(&mut self) -> Result<(), Mismatch> {
        match self.byte()? {
            2..=5 => Ok(()),
            protocol => wrong("protocol 2 to 5", format!("protocol {protocol}")),
        }
    }

    fn frame(&mut self) -> Result<(), Mismatch> {
        let length = self.number::<8>()?;
        match self.left() {
            left if length <= left as u64 => Ok(()),
            left => wrong(format!("a frame of at most {left} bytes"), format!("{length} bytes")),
        }
    }

    fn scalar(&mut self, code: u8) -> Result<(), Mismatch> {
        let value = match code {
            b'N' => PickleValue::None,
            0x88 | 0x89 => PickleValue::Bool(code == 0x88),
            b'J' => PickleValue::Int(i64::from(self.number::<4>()? as u32 as i32)),
            b'K' => PickleValue::Int(self.number::<1>()? as i64),
            b'M' => PickleValue::Int(self.number::<2>()? as i64),
            b'G' => PickleValue::Float(f64::from_bits(self.number::<8>()?.swap_bytes())),
            _ => PickleValue::from_long(self.sized(code)?),
        };
        self.stack.push(value);
        Ok(())
    }

    fn text(&mut self, code: u8) -> Result<(), Mismatch> {
        let text = std::str::from_utf8(self.sized(code)?);
        let text = text.map_err(|error| ("a string in UTF-8".into(), error.to_string()))?;
        self.stack.push(PickleValue::Text(text.into()));
        Ok(())
    }

    fn opaque_bytes(&mut self, code: u8) -> Result<(), Mismatch> {
        self.sized(code)?;
        self.stack.push(PickleValue::Bytes);
        Ok(())
    }

    fn container(&mut self, code: u8) -> Result<(), Mismatch> {
        let object = match code {
            b']' | 0x8f => Object::List(Vec::new()),
            b')' => Object::Tuple(Vec::new()),
            b'}' => Object::Dict(Vec::new()),
            b't' => Object::Tuple(self.since_mark()?),
            b'l' | 0x91 => Object::List(self.since_mark()?),
            b'd' => Object::Dict(pairs(self.since_mark()?)?),
            _ => Object::Tuple(self.last(usize::from(code - 0x84))?),
        };
        self.push(object)
    }

    fn append(&mut self, code: u8) -> Result<(), Mismatch> {
        let values = if code == b'a' { vec![self.pop()?] } else { self.since_mark()? };
        match self.target()? {
            Object::List(list) => list.extend(values),
            Object::Call(call) => call.appended.extend(values),
            _ => return wrong("a list to append to", "something else"),
        }
        Ok(())
    }

    fn set_items(&mut self, code: u8) -> Result<(), Mismatch> {
        let items = pairs(if code == b's' { self.last(2)? } else { self.since_mark()? })?;
        match self.target()? {
            Object::Dict(dict) => dict.extend(items),
            Object::Call(call) => call.items.extend(items),
            _ => return wrong("a dict to set items of", "something else"),
        }
        Ok(())
    }

    fn memorise(&mut self, code: u8) -> Result<(), Mismatch> {
        let key = match code {
            b'q' | b'h' => self.number::<1>()? as u32,
            b'r' | b'j' => self.number::<4>()? as u32,
            _ => self.memo.len() as u32,
        };
        if code == b'h' || code == b'j' {
            let Some(value) = self.memo.get(&key) else {
                return wrong("a value in the memo", format!("none under {key}"));
            };
            self.stack.push(value.clone());
        } else {
            let value = self.top()?.clone();
            self.memo.insert(key, value);
        }
        Ok(())
    }

    fn global(&mut self, code: u8) -> Result<(), Mismatch> {
        let (module, name) = if code == b'c' {
            (self.line()?, self.line()?)
        } else {
            match self.last(2)?.as_slice() {
                [PickleValue::Text(module), PickleValue::Text(name)] => (module.to_string(), name.to_string()),
                _ => return wrong("two strings: a module and a name in it", "something else"),
            }
        };
        let known = GLOBALS.iter().filter(|(known, _)| **known == *module);
        let known = known.flat_map(|(module, names)| names.iter().map(move |name| (*module, *name)));
        match known.into_iter().find(|(_, known)| **known == *name) {
            Some((module, name)) => self.push(Object::Global(module, name)),
            None => {
                wrong("a name that training checkpoints need", format!("{module}.{name}").escape_debug().to_string())
            }
        }
    }

    /// Refuses a call of a name within the instruction. Errors name the name if no checkpoint needs it.
    fn instance(&mut self) -> Result<(), Mismatch> {
        self.global(b'c')?;
        wrong("an instruction that reads data", "0x69 ('i')")
    }

    fn call(&mut self, code: u8) -> Result<(), Mismatch> {
        if code == 0x92 {
            // keyword arguments are not needed
            self.pop()?;
        }
        let arguments = self.pop()?;
        let callable = self.pop()?;
        let (Some(Object::Tuple(_)), Some(&Object::Global(module, name))) =
            (self.object(&arguments), self.object(&callable))
        else {
            return wrong("a known name and a tuple of arguments", "something else");
        };
        let call = PickleCall { module, name, arguments, state: None, items: Vec::new(), appended: Vec::new() };
        self.push(Object::Call(Box::new(call)))
    }

    fn build(&mut self) -> Result<(), Mismatch> {
        let state = self.pop()?;
        match self.target()? {
            Object::Call(call) => call.state = Some(state),
            _ => return wrong("an object to set the state of", "something else"),
        }
        Ok(())
    }

    fn object(&self, value: &PickleValue) -> Option<&Object> {
        if let PickleValue::Object(index) = value { self.objects.get(*index) } else { None }
    }

    /// Returns the object on top of the stack.
    fn target(&mut self) -> Result<&mut Object, Mismatch> {
        let index = match self.top()? {
            PickleValue::Object(index) => *index,
            _ => return wrong("an object", "a plain value"),
        };
        self.objects.get_mut(index).ok_or_else(|| ("an object".into(), "nothing".into()))
    }

    fn push(&mut self, object: Object) -> Result<(), Mismatch> {
        if self.objects.len() >= MAX_OBJECTS {
            return wrong(format!("at most {MAX_OBJECTS} objects"), "more");
        }
        self.stack.push(PickleValue::Object(self.objects.len()));
        self.objects.push(object);
        Ok(())
    }

    fn mark(&mut self) -> Result<(), Mismatch> {
        if self.marks.len() >= MAX_MARKS {
            return wrong(format!("at most {MAX_MARKS} open marks"), "more");
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Minimum height of the stack: the innermost open mark's.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or_default()
    }

    fn top(&self) -> Result<&PickleValue, Mismatch> {
        match self.stack.last() {
            Some(value) if self.stack.len() > self.floor() => Ok(value),
            _ => wrong("a value on the stack", "none"),
        }
    }

    fn pop(&mut self) -> Result<PickleValue, Mismatch> {
        self.top()?;
        self.stack.pop().ok_or_else(|| ("a value on the stack".into(), "none".into()))
    }

    fn last(&mut self, count: usize) -> Result<Vec<PickleValue>, Mismatch> {
        match self.stack.len().checked_sub(count).filter(|&height| height >= self.floor()) {
            Some(height) => Ok(self.stack.split_off(height)),
            None => wrong(format!("{count} values on the stack"), "fewer"),
        }
    }

    fn since_mark(&mut self) -> Result<Vec<PickleValue>, Mismatch> {
        match self.marks.pop() {
            Some(height) if height <= self.stack.len() => Ok(self.stack.split_off(height)),
            _ => wrong("an open mark", "none"),
        }
    }

    fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.offset)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Mismatch> {
        let end = usize::try_from(length).ok().and_then(|length| self.offset.checked_add(length));
        let Some(taken) = end.and_then(|end| self.bytes.get(self.offset..end)) else {
            return wrong(format!("{length} more bytes"), self.left().to_string());
        };
        self.offset += taken.len();
        Ok(taken)
    }

    /// Takes the length of 1, 4 or 8 bytes that `code` has, and then as many bytes.
    fn sized(&mut self, code: u8) -> Result<&'a [u8], Mismatch> {
        let length = match code {
            0x8a | 0x8c | b'C' | b'U' => self.number::<1>()?,
            0x8d | 0x8e | 0x96 => self.number::<8>()?,
            _ => self.number::<4>()?,
        };
        self.take(length)
    }

    fn byte(&mut self) -> Result<u8, Mismatch> {
        self.number::<1>().map(|number| number as u8)
    }

    /// Reads an unsigned little-endian number of N ≤ 8 bytes.
    fn number<const N: usize>(&mut self) -> Result<u64, Mismatch> {
        let bytes = self.take(N as u64)?;
        Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// Reads text up to a newline.
    fn line(&mut self) -> Result<String, Mismatch> {
        const MAX_LENGTH: usize = 256;
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let Some(length) = rest.iter().take(MAX_LENGTH).position(|&byte| byte == b'\n') else {
            return wrong(format!("a name of less than {MAX_LENGTH} bytes and a newline"), "none");
        };
        let line = String::from_utf8_lossy(self.take(length as u64)?).into_owned();
        self.offset += 1;
        Ok(line)
    }
}

fn pairs(values: Vec<PickleValue>) -> Result<Vec<(PickleValue, PickleValue)>, Mismatch> {
    if values.len() % 2 == 1 {
        return wrong("keys and values in pairs", format!("{} values", values.len()));
    }
    let mut values = values.into_iter();
    Ok(std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(program: &[u8]) -> Result<Pickle, PickleError> {
        Pickle::read(program)
    }

    fn int(program: &[u8]) -> PickleValue {
        read(program).unwrap().root
    }

    #[test]
    fn plain_values() {
        assert_eq!(int(b"\x80\x02K\x07."), PickleValue::Int(7));
        assert_eq!(int(b"\x80\x02J\xff\xff\xff\xff."), PickleValue::Int(-1));
        assert_eq!(int(b"\x80\x02M\x01\x02."), PickleValue::Int(513));
        assert_eq!(int(b"\x80\x02G\x3f\xb9\x99\x99\x99\x99\x99\x9a."), PickleValue::Float(0.1));
        assert_eq!(int(b"\x80\x02\x8a\x00."), PickleValue::Int(0));
        assert_eq!(int(b"\x80\x02\x8a\x01\xff."), PickleValue::Int(-1));
        assert_eq!(int(b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."), PickleValue::LongInt);
        assert_eq!(int(b"\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), PickleValue::Int(i64::MAX));
        assert_eq!(
            int(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x02\xc3\xa9."),
            PickleValue::Text("é".into())
        );
    }

    #[test]
    fn containers_and_the_memo() {
        // {"a": [1, 2], "b": the same list, later grown by 3}
        let pickle = read(b"\x80\x02}(X\x01\x00\x00\x00a]q\x00(K\x01K\x02eX\x01\x00\x00\x00bh\x00K\x03au.").unwrap();
        for name in ["a", "b"] {
            let list = pickle.item(&pickle.root, name).unwrap();
            assert_eq!(pickle.elements(list).unwrap(), [PickleValue::Int(1), PickleValue::Int(2), PickleValue::Int(3)]);
        }
        assert_eq!(pickle.item(&pickle.root, "c"), None);
    }

    #[test]
    fn calls_are_recorded_and_never_made() {
        let pickle = read(b"\x80\x02cargparse\nNamespace\n)\x81}X\x01\x00\x00\x00xK\x05sb.").unwrap();
        let call = pickle.call(&pickle.root).unwrap();
        assert_eq!((call.module, call.name), ("argparse", "Namespace"));
        assert_eq!(pickle.item(call.state.as_ref().unwrap(), "x"), Some(&PickleValue::Int(5)));
        let pickle = read(b"\x80\x02ccollections\nOrderedDict\n)RX\x01\x00\x00\x00xK\x05s.").unwrap();
        assert_eq!(pickle.item(&pickle.root, "x"), Some(&PickleValue::Int(5)));
    }

    #[test]
    fn errors_have_the_offset_of_the_instruction() {
        let error = |program: &[u8]| read(program).unwrap_err().to_string();
        let cases: &[(&[u8], &str)] = &[
            (b"\x80\x02cos\nsystem\n", "byte 2: expected a name that training checkpoints need, found os.system"),
            (
                b"\x80\x04\x8c\x02os\x8c\x06system\x93",
                "byte 14: expected a name that training checkpoints need, found os.system",
            ),
            (b"\x80\x02ios\nsystem\n", "byte 2: expected a name that training checkpoints need, found os.system"),
            (b"\x80\x02itorch\nSize\n", "byte 2: expected an instruction that reads data, found 0x69 ('i')"),
            (b"\x80\x01N.", "byte 0: expected protocol 2 to 5, found protocol 1"),
            (b"(lp0\n.", "byte 0: expected a pickle (first byte 0x80), found 0x28"),
            (b"", "byte 0: expected 1 more bytes, found 0"),
            (b"\x80\x02X\xff\xff\xff\xffabc", "byte 2: expected 4294967295 more bytes, found 3"),
            (
                b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
                "byte 2: expected 18446744073709551615 more bytes, found 0",
            ),
            (b"\x80\x02h\x00.", "byte 2: expected a value in the memo, found none under 0"),
            (b"\x80\x02R.", "byte 2: expected a value on the stack, found none"),
            (b"\x80\x02NNR.", "byte 4: expected a known name and a tuple of arguments, found something else"),
            (b"\x80\x02(0.", "byte 3: expected a value on the stack, found none"),
            (b"\x80\x02N(\x85.", "byte 4: expected 1 values on the stack, found fewer"),
            (b"\x80\x02}(Nu.", "byte 5: expected keys and values in pairs, found 1 values"),
            (b"\x80\x02NN.", "byte 4: expected one value at the end, found 2 values and 0 open marks"),
            (b"\x80\x02N.N", "byte 3: expected the end of the file, found 1 more bytes"),
            (b"\x80\x02N", "byte 3: expected 1 more bytes, found 0"),
            (
                b"\x80\x02X\x01\x00\x00\x00\xff.",
                "byte 2: expected a string in UTF-8, found invalid utf-8 sequence of 1 bytes from index 0",
            ),
        ];
        for (program, expected) in cases {
            assert_eq!(error(program), *expected, "{program:?}");
        }
    }

    #[test]
    fn limits_hold() {
        let program = |body: &[u8], times: usize| [b"\x80\x02", body.repeat(times).as_slice()].concat();
        let error = |body: &[u8], times| read(&program(body, times)).unwrap_err().to_string();
        assert!(error(b"(", 2000).contains("at most 1000 open marks"));
        assert!(error(b"]", 2 << 20).contains("objects"));
        assert!(error(b"N0", 4 << 20).contains("instructions"));
        assert!(error(b"N", 17 << 20).contains("bytes"));
        // a million nested tuples cost no recursion, neither to build nor to drop
        let deep = [program(b"N", 1), b"\x85".repeat(1 << 19), b".".to_vec()].concat();
        read(&deep).unwrap();
        // a large tuple is not copied for each call of it: that would be some terabytes
        let large = [b"\x80\x02(", b"N".repeat(1 << 20).as_slice(), b"tq\x000cargparse\nNamespace\nq\x010"].concat();
        let calls = [large, b"h\x01h\x00R0".repeat(1 << 19), b"N.".to_vec()].concat();
        read(&calls).unwrap();
    }
}
