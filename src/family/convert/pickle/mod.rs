//! Reads Python pickles and executes nothing.
//!
//! A pickle is a program for a small stack machine whose instructions can call any function of the reader's Python. This
//! machine has the stack and the memo, but no functions: a call becomes an inert [`Object::Call`] that records what would
//! have been called with what, and only names on an allow-list (`machine.rs`) may stand there at all. Objects live in an arena
//! and refer to each other by index, so that neither depth nor cycles cost recursion.
//!
//! Everything is bounded: lengths by what is left of the input, objects, stack and work by fixed limits.

mod machine;

use machine::Machine;
use std::rc::Rc;

/// The longest pickle: a training checkpoint's, without its tensors, has some hundred kilobytes.
pub const MAX_BYTES: usize = 16 << 20;
/// A value on the stack.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
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
    /// Anything made of other values, by its place in the arena.
    Object(usize),
}

/// What is made of other values.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A name of the allow-list: module, name.
    Global(&'static str, &'static str),
    /// A tuple.
    Tuple(Vec<Value>),
    /// A list or a set.
    List(Vec<Value>),
    /// A dict; a key that stands twice is here twice.
    Dict(Vec<(Value, Value)>),
    /// What Python would have called, not called.
    Call(Box<Call>),
    /// A reference to something outside the pickle: a tensor's storage.
    Persistent(Value),
}

/// A call that did not happen.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Module of what would have been called.
    pub module: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The tuple of arguments, where it lies: a copy could be asked for a million times.
    pub arguments: Value,
    /// What its attributes would have been set from.
    pub state: Option<Value>,
    /// Items that would have been set: `x[key] = value`.
    pub items: Vec<(Value, Value)>,
    /// Items that would have been appended.
    pub appended: Vec<Value>,
}

/// Why a pickle was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: expected {expected}, found {found}")]
pub struct PickleError {
    /// The instruction's place, in bytes.
    pub offset: usize,
    /// What must be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// A pickle that was read.
#[derive(Debug)]
pub struct Pickle {
    objects: Vec<Object>,
    root: Value,
}

impl Pickle {
    /// Reads a pickle of protocol 2 to 5.
    ///
    /// # Errors
    /// An instruction or a name that is not known here; anything malformed, truncated or beyond a limit; bytes after the end.
    pub fn read(bytes: &[u8]) -> Result<Self, PickleError> {
        if bytes.len() > MAX_BYTES {
            let (expected, found) = (format!("at most {MAX_BYTES} bytes"), format!("{} bytes", bytes.len()));
            return Err(PickleError { offset: 0, expected, found });
        }
        let mut machine = Machine::new(bytes);
        match machine.run() {
            Ok(()) => Ok(machine.finish()),
            Err((expected, found)) => Err(PickleError { offset: machine.offset(), expected, found }),
        }
    }

    /// The value that the pickle stands for.
    pub fn root(&self) -> &Value {
        &self.root
    }

    /// The object behind a value.
    pub fn object(&self, value: &Value) -> Option<&Object> {
        if let Value::Object(index) = value { self.objects.get(*index) } else { None }
    }

    /// The elements of a tuple or list.
    pub fn elements(&self, value: &Value) -> Option<&[Value]> {
        match self.object(value)? {
            Object::Tuple(elements) | Object::List(elements) => Some(elements),
            _ => None,
        }
    }

    /// The items of a dict or of a dict-like object (`OrderedDict`).
    pub fn items(&self, value: &Value) -> Option<&[(Value, Value)]> {
        match self.object(value)? {
            Object::Dict(items) => Some(items),
            Object::Call(call) if call.module == "collections" => Some(&call.items),
            _ => None,
        }
    }

    /// The call behind a value.
    pub fn call(&self, value: &Value) -> Option<&Call> {
        if let Some(Object::Call(call)) = self.object(value) { Some(call) } else { None }
    }

    /// The item of a dict under a name; the last one, as in Python, if it was set twice.
    pub fn item<'a>(&'a self, dict: &Value, name: &str) -> Option<&'a Value> {
        let found = self.items(dict)?.iter().rev().find(|(key, _)| matches!(key, Value::Text(text) if **text == *name));
        found.map(|(_, value)| value)
    }

    /// A few words on a value, for messages.
    pub fn describe(&self, value: &Value) -> String {
        match value {
            Value::Object(_) => match self.object(value) {
                Some(Object::Global(module, name)) => format!("the name {module}.{name}"),
                Some(Object::Tuple(elements)) => format!("a tuple of {}", elements.len()),
                Some(Object::List(elements)) => format!("a list of {}", elements.len()),
                Some(Object::Dict(items)) => format!("a dict of {}", items.len()),
                Some(Object::Call(call)) => format!("a {}.{}", call.module, call.name),
                Some(Object::Persistent(_)) => "a storage".into(),
                None => "nothing".into(),
            },
            Value::Text(text) if text.len() > 60 => format!("a string of {} bytes", text.len()),
            Value::Text(text) => format!("{text:?}"),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::None => "None".into(),
            Value::LongInt => "an integer of more than 64 bits".into(),
            Value::Bytes => "bytes".into(),
        }
    }
}

#[cfg(test)]
mod tests;
