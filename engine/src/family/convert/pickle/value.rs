//! The values of a pickle.

use std::rc::Rc;

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
    pub(super) fn from_long(bytes: &[u8]) -> Self {
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
    pub(super) objects: Vec<Object>,
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
