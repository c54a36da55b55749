//! The stack machine that reads a pickle: instructions in, inert objects out.

use super::value::{Object, Pickle, PickleCall, PickleValue};
use std::collections::HashMap;

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
pub(super) struct PickleMachine<'a> {
    bytes: &'a [u8],
    /// Offset of the next byte.
    offset: usize,
    /// Offset of the current instruction.
    pub(super) start: usize,
    objects: Vec<Object>,
    stack: Vec<PickleValue>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, PickleValue>,
}

impl<'a> PickleMachine<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, ..Self::default() }
    }

    pub(super) fn finish(mut self) -> Pickle {
        Pickle { root: self.stack.pop().unwrap_or(PickleValue::None), objects: self.objects }
    }

    pub(super) fn run(&mut self) -> Result<(), Mismatch> {
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

    /// Minimum height of the stack: that of the innermost open mark.
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
