//! Rewrites or refuses JSON schemas that their parser, the crate llguidance, would misread.
//!
//! [`check_schema`] refuses what the parser would misread, and [`prepare`] rewrites the rest. A schema is read as one of draft 2020-12,
//! whatever its `$schema` says, but `additionalItems` and lists in `items` work as in older drafts. Unknown keywords are ignored, except
//! those of other drafts and of OpenAPI that allow or forbid texts.

use crate::{
    clock::now,
    pattern::{STEP_TIME, check_classes, count_classes},
};
use llguidance::{GrammarBuilder, JsonCompileOptions, api::ParserLimits, panic_utils};
use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Map, Value, json};
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
};
use weir_kernels::error::{Error, Result, clip};

/// Maximum product of the lengths of the expressions that one string must match. The memory of their intersection grows with the product
/// within a single step, so the parser's own limits would stop it too late.
const MAX_INTERSECTION: usize = 10_000_000;

/// Maximum rules of a grammar (colons outside of texts), and maximum objects of a schema. Each may refer to the next, which the parser
/// follows by recursion.
pub(crate) const MAX_RULES: usize = 1000;

/// Maximum bytes of an error of the grammar's parser that is passed on.
pub(crate) const REASON_BYTES: usize = 300;

/// Limits of a schema or grammar. A millisecond burns about 50,000 units of the lexer's fuel at the start, and 14,000 later. Items of
/// an ambiguous grammar take longer than that, so [`STEP_TIME`] bounds a step's time.
pub(crate) const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 10_000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 100_000,
    step_max_items: 250_000,
    max_lexer_states: 10_000,
    max_grammar_size: 200_000,
    precompute_large_lexemes: false,
    verbose_errors: false,
};

/// Length that a `format` of a schema counts as.
const FORMAT_LENGTH: usize = 100;

/// Keywords of a schema whose value is data.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "example"];

/// Keywords of a schema whose value maps names to schemas.
const NAMED_PARTS: [&str; 5] = ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"];

/// Keywords of a schema whose value is a schema or a list of schemas.
const PARTS: [&str; 15] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Counts the classes in the patterns of a schema, wherever they stand.
pub(crate) fn count_schema_classes(schema: &Value) -> usize {
    let count = |(key, member): (Cow<'_, str>, &Value)| {
        patterns(&key, member).into_iter().map(count_classes).sum::<usize>() + count_schema_classes(member)
    };
    members(schema).into_iter().map(count).sum()
}

/// The years that validators know: RFC 3339 also has a year 0.
const YEAR: &str = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";

/// Month and day, if every year has it. The parser's expression limits the days of each month, but allows 29 February in any year.
const DAY: &str = "(?:(?:0[13-9]|1.)-..|02-(?:[01].|2[0-8]))";
const LEAP_DAY: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29";

/// A leap second, which ends a day of UTC.
const LEAP_SECOND: &str = "23:59:60(?:[.][0-9]+)?(?:[zZ]|[+-]00:00)";

pub(crate) fn too_many(field: &'static str, length: usize, unit: &'static str) -> Error {
    Error::TooLong { field, length, limit: MAX_RULES, unit, why: None }
}

/// Refuses expressions whose intersection could take too much memory.
pub(crate) fn check_intersection(field: &'static str, length: usize, unit: &'static str) -> Result<()> {
    match length > MAX_INTERSECTION {
        true => Err(Error::TooLong { field, length, limit: MAX_INTERSECTION, unit, why: None }),
        false => Ok(()),
    }
}

/// Rewrites a schema for the parser, and refuses one with a string that must match patterns whose intersection could take too much memory.
/// Follows references by recursion.
pub(crate) fn prepare(field: &'static str, schema: &mut Value) -> Result<()> {
    rewrite(schema);
    check_patterns(field, schema)
}

/// Rewrites a schema so that the parser reads it correctly. A part with a `format` gets a pattern for what the parser's own expression
/// omits.
fn rewrite(schema: &mut Value) {
    let keywords = match schema {
        Value::Object(keywords) => keywords,
        Value::Array(parts) => return parts.iter_mut().for_each(rewrite),
        _ => return,
    };
    for (keyword, value) in keywords.iter_mut() {
        match (keyword.as_str(), value) {
            (keyword, _) if DATA.contains(&keyword) => {}
            (keyword, Value::Object(parts)) if NAMED_PARTS.contains(&keyword) => parts.values_mut().for_each(rewrite),
            (_, value) => rewrite(value),
        }
    }
    let is_needless = |keyword: &str, value: &Value| match keyword {
        "$schema" => value.is_string(),
        "required" | "uniqueItems" => *value == Value::Bool(false),
        _ => false,
    };
    keywords.retain(|keyword, value| !is_needless(keyword, value));
    if !keywords.get("items").is_some_and(Value::is_array) {
        keywords.shift_remove("additionalItems");
    }
    // the parser misreads the second of each pair if a keyword such as allOf stands between them
    for pair in [["items", "additionalItems"], ["patternProperties", "additionalProperties"]] {
        if pair.iter().all(|name| keywords.contains_key(*name)) {
            for name in pair {
                let value = keywords.shift_remove(name).unwrap_or_default();
                keywords.insert(name.into(), value);
            }
        }
    }
    let exact = match keywords.get("format").and_then(Value::as_str) {
        Some("date") => format!("^(?:{YEAR}-{DAY}|{LEAP_DAY})$"),
        Some("time") => format!("^(?:.{{6}}[0-5].*|{LEAP_SECOND})$"),
        Some("date-time") => {
            format!("^(?:(?:{YEAR}-{DAY}|{LEAP_DAY}).{{7}}[0-5].*|{YEAR}-(?:06-30|12-31).{LEAP_SECOND})$")
        }
        Some("hostname") => "^.{0,253}$".to_owned(),
        _ => return,
    };
    if !keywords.contains_key("pattern") {
        keywords.insert("pattern".into(), exact.into());
    } else if let Value::Array(parts) = keywords.entry("allOf").or_insert_with(|| json!([])) {
        parts.push(json!({ "pattern": exact }));
    }
}

/// Refuses a schema that might take its parser too long, or whose texts might not satisfy it. `place` says where the schema is.
pub(crate) fn check_schema(field: &'static str, schema: &Value, place: &str) -> Result<()> {
    let schemas = count_schemas(schema);
    if schemas > MAX_RULES {
        return Err(too_many(field, schemas, "objects and booleans"));
    }
    check_classes(field, count_schema_classes(schema))?;
    let fault = Faults::of(schema, &mut |part| {
        let keywords = part.as_object()?;
        let base = || (!std::ptr::eq(part, schema)).then(|| moved_base(part)).flatten();
        too_many_properties(keywords)
            .or_else(|| misread_number(keywords))
            .or_else(|| dropped_character(keywords))
            .or_else(|| misread_class(keywords))
            .or_else(|| foreign(keywords))
            .or_else(base)
    });
    fault.map_or(Ok(()), |fault| Err(fault.error(field, place)))
}

/// Refuses a schema with a string that must match patterns whose intersection could take too much memory. Follows references by recursion.
fn check_patterns(field: &'static str, schema: &Value) -> Result<()> {
    let mut patterns = Patterns { root: schema, longest: longest_pattern(schema), known: HashMap::new() };
    let length = patterns.intersection(schema);
    check_intersection(field, length, "as the product of the lengths of patterns that one string must match")
}

fn longest_pattern(schema: &Value) -> usize {
    let own = schema.get("pattern").and_then(Value::as_str).map_or(FORMAT_LENGTH, str::len);
    members(schema).into_iter().map(|(_, member)| longest_pattern(member)).fold(own, usize::max)
}

/// The patterns of a schema.
struct Patterns<'a> {
    root: &'a Value,
    longest: usize,
    /// The products of referenced parts, by reference.
    known: HashMap<&'a str, usize>,
}

impl<'a> Patterns<'a> {
    /// Returns the largest product of the lengths of patterns that one string of a part of the schema must match.
    fn intersection(&mut self, part: &'a Value) -> usize {
        let Value::Object(keywords) = part else { return self.largest(part) };
        let mut all = 1_usize;
        let mut inner = 1;
        // a property must satisfy its own schema and its pattern's
        let mut named = 1_usize;
        for (keyword, value) in keywords {
            let factor = match (keyword.as_str(), value) {
                ("pattern", Value::String(pattern)) => pattern.len(),
                ("format", Value::String(_)) => FORMAT_LENGTH,
                ("$ref", Value::String(reference)) => self.referred(reference),
                ("allOf", Value::Array(parts)) => {
                    parts.iter().map(|part| self.intersection(part)).fold(1, usize::saturating_mul)
                }
                ("anyOf" | "oneOf", Value::Array(_)) => self.largest(value),
                // definitions count where they are referred to
                ("$defs" | "definitions", _) => 1,
                (keyword, _) if DATA.contains(&keyword) => 1,
                ("properties" | "dependentSchemas", Value::Object(_)) => {
                    named = named.saturating_mul(self.largest(value));
                    1
                }
                ("patternProperties", Value::Object(names)) => {
                    // no name may match two of them: the check intersects each pair
                    let mut lengths: Vec<usize> = names.keys().map(String::len).collect();
                    lengths.sort_unstable();
                    let pair = lengths.iter().rev().take(2).copied().fold(1, usize::saturating_mul);
                    inner = inner.max(pair);
                    named = named.saturating_mul(self.largest(value));
                    1
                }
                _ => {
                    inner = inner.max(self.intersection(value));
                    1
                }
            };
            all = all.saturating_mul(factor.max(1));
        }
        all.saturating_mul(inner.max(named))
    }

    /// Returns the largest product of the parts in an array or object.
    fn largest(&mut self, parts: &'a Value) -> usize {
        members(parts).into_iter().map(|(_, part)| self.intersection(part)).max().unwrap_or(1)
    }

    /// Returns the product of the part that a reference names. A reference to a part that contains it counts as the longest pattern.
    fn referred(&mut self, reference: &'a str) -> usize {
        if let Some(known) = self.known.get(reference) {
            return *known;
        }
        self.known.insert(reference, self.longest);
        let found = resolve(self.root, reference).map_or(1, |target| self.intersection(target));
        self.known.insert(reference, found);
        found
    }
}

/// Resolves a reference as the parser does: only within the schema.
fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let path = reference.strip_prefix('#')?.trim_start_matches('/');
    path.split('/').filter(|_| !path.is_empty()).try_fold(root, |at, name| match at {
        Value::Array(elements) => elements.get(name.parse::<usize>().ok()?),
        at => at.get(name),
    })
}

fn count_schemas(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => 1 + members.values().map(count_schemas).sum::<usize>(),
        Value::Array(elements) => elements.iter().map(count_schemas).sum(),
        Value::Bool(_) => 1,
        _ => 0,
    }
}

/// A keyword that the parser misreads.
struct SchemaFault {
    /// JSON pointer of the keyword.
    pointer: String,
    value: String,
    bound: String,
}

impl SchemaFault {
    fn new(keyword: &str, value: &Value, bound: String) -> Self {
        SchemaFault { pointer: format!("/{keyword}"), value: value.to_string(), bound }
    }

    fn error(&self, field: &'static str, place: &str) -> Error {
        let found = format!("{}, at #{}{place}", clip(&self.value, REASON_BYTES), clip(&self.pointer, REASON_BYTES));
        Error::bad_option(field, found, self.bound.clone())
    }
}

/// Looks for faults in the parts of a schema.
struct Faults<'a, 'f> {
    root: &'a Value,
    find: &'f mut dyn FnMut(&'a Value) -> Option<SchemaFault>,
    /// The addresses of parts seen, because references lead to a part again.
    seen: HashSet<*const Value>,
}

impl<'a, 'f> Faults<'a, 'f> {
    /// Returns the first fault that `find` reports in a part of a schema.
    fn of(schema: &'a Value, find: &'f mut dyn FnMut(&'a Value) -> Option<SchemaFault>) -> Option<SchemaFault> {
        Self { root: schema, find, seen: HashSet::new() }.within(schema, "")
    }

    /// Returns the first fault in the part at a JSON pointer. Follows references by recursion.
    fn within(&mut self, part: &'a Value, pointer: &str) -> Option<SchemaFault> {
        if !self.seen.insert(part) {
            return None;
        }
        if let Some(fault) = (self.find)(part) {
            return Some(SchemaFault { pointer: format!("{pointer}{}", fault.pointer), ..fault });
        }
        part.as_object()?.iter().find_map(|(keyword, value)| {
            let at = || format!("{pointer}/{}", pointer_token(keyword));
            match (keyword.as_str(), value) {
                ("$ref", Value::String(reference)) => {
                    self.within(resolve(self.root, reference)?, reference.strip_prefix('#')?)
                }
                (keyword, Value::Object(_)) if PARTS.contains(&keyword) => self.within(value, &at()),
                (keyword, _) if PARTS.contains(&keyword) || NAMED_PARTS.contains(&keyword) => members(value)
                    .into_iter()
                    .find_map(|(name, part)| self.within(part, &format!("{}/{}", at(), pointer_token(&name)))),
                _ => None,
            }
        })
    }
}

/// Finds a keyword of another draft, or of OpenAPI, that the parser ignores although it allows or forbids texts.
fn foreign(keywords: &Map<String, Value>) -> Option<SchemaFault> {
    keywords.iter().find_map(|(keyword, value)| {
        let instead = match (keyword.as_str(), value) {
            ("disallow", _) => "a schema without disallow, a keyword of draft 3",
            ("divisibleBy", _) => "multipleOf, as in drafts after 3",
            ("extends", _) => "allOf, as in drafts after 3",
            ("required", Value::Bool(true)) => "a list of names next to properties, as in drafts after 3",
            ("exclusiveMinimum" | "exclusiveMaximum", Value::Bool(true)) => "a number, as in drafts after 4",
            ("items", Value::Array(_)) if keywords.contains_key("prefixItems") => "a schema next to prefixItems",
            ("nullable", Value::Bool(true)) if !lists_null(keywords) => "a type that lists \"null\", as in OpenAPI 3.1",
            _ => return None,
        };
        Some(SchemaFault::new(keyword, value, instead.to_owned()))
    })
}

fn lists_null(keywords: &Map<String, Value>) -> bool {
    let named = |name: &Value| *name == "null";
    keywords.get("type").is_some_and(|kind| named(kind) || kind.as_array().is_some_and(|all| all.iter().any(named)))
}

/// Finds an `$id` in a part with references: these are relative to it, but the parser resolves them from the root.
fn moved_base(part: &Value) -> Option<SchemaFault> {
    let id = part.get("$id").filter(|id| id.as_str().is_some_and(|id| !id.starts_with('#')))?;
    let refers = |part: &Value| part.get("$ref").map(|_| SchemaFault::new("$id", id, "an $id only at the root".into()));
    Faults::of(part, &mut |part| refers(part)).map(|fault| SchemaFault { pointer: "/$id".into(), ..fault })
}

/// Finds a `minProperties` that exceeds the number of required names by more than one: the parser would let a text meet it by repeating a
/// name, although a repeated name counts once.
fn too_many_properties(keywords: &Map<String, Value>) -> Option<SchemaFault> {
    let required = keywords.get("required").and_then(Value::as_array).into_iter().flatten();
    let limit = required.filter_map(Value::as_str).collect::<HashSet<_>>().len() as u64 + 1;
    let has_others =
        keywords.get("additionalProperties") != Some(&Value::Bool(false)) || keywords.contains_key("patternProperties");
    let value = keywords
        .get("minProperties")
        .filter(|value| has_others && value.as_u64().is_some_and(|least| least > limit))?;
    let bound = format!("minProperties of at most {limit}, one more than the required properties");
    Some(SchemaFault::new("minProperties", value, bound))
}

/// Finds a number that the parser rounds, or a bound that it includes although it is exclusive.
fn misread_number(keywords: &Map<String, Value>) -> Option<SchemaFault> {
    let bounds = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];
    let rounded = keywords.iter().find_map(|(name, value)| {
        let is_far = || {
            let size = value.as_f64().map_or(0.0, f64::abs);
            if name.starts_with("exclusive") {
                size >= MAX_EXCLUSIVE
            } else {
                value.as_i64().is_none() && size >= MAX_BOUND
            }
        };
        let is_misread = match name.as_str() {
            "const" | "enum" => is_rounded(value),
            name if bounds.contains(&name) => is_rounded(value) || is_far(),
            _ => false,
        };
        let bound = "a 64-bit integer that a 64-bit float represents exactly, or a number with a fraction";
        is_misread.then(|| SchemaFault::new(name, value, bound.to_owned()))
    });
    let number = |name: &str| keywords.get(name).and_then(Value::as_f64);
    // the parser allows any fraction after the digits of the bound nearer to zero, even an empty one
    let includes = |exclusive: &str, others: [&str; 2]| {
        let value = keywords.get(exclusive)?;
        let nearer = value.as_f64().filter(|bound| bound.trunc() == *bound)?;
        let other = others.into_iter().find_map(number)?;
        let farther = nearer.abs() < other.abs() && (nearer == 0.0 || nearer.signum() == other.signum());
        (farther && other.trunc() == nearer).then(|| {
            let bound = "an exclusive bound with a fraction, or the other bound at least 1 away";
            SchemaFault::new(exclusive, value, bound.to_owned())
        })
    };
    rounded
        .or_else(|| includes("exclusiveMinimum", ["maximum", "exclusiveMaximum"]))
        .or_else(|| includes("exclusiveMaximum", ["minimum", "exclusiveMinimum"]))
}

/// Finds a text or pattern with a control character that has no short escape: the parser drops it.
fn dropped_character(keywords: &Map<String, Value>) -> Option<SchemaFault> {
    keywords.iter().find_map(|(keyword, value)| {
        let is_dropped = match (keyword.as_str(), value) {
            ("const" | "enum", _) => drops_text(value),
            _ => patterns(keyword, value).into_iter().any(drops_pattern),
        };
        let bound = r"texts without control characters other than \b, \f, \n, \r and \t";
        is_dropped.then(|| SchemaFault::new(keyword, value, bound.to_owned()))
    })
}

/// Returns the patterns of a keyword.
fn patterns<'a>(keyword: &str, value: &'a Value) -> Vec<&'a str> {
    match (keyword, value) {
        ("pattern", Value::String(pattern)) => vec![pattern],
        ("patternProperties", Value::Object(names)) => names.keys().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Finds a pattern with a class that the parser would not read as ECMA-262 does: it knows operators and classes within classes.
fn misread_class(keywords: &Map<String, Value>) -> Option<SchemaFault> {
    keywords.iter().find_map(|(keyword, value)| {
        let bound = "classes in which &&, --, ~~, [ and a first ] are escaped";
        let is_misread = patterns(keyword, value).into_iter().any(has_misread_class);
        is_misread.then(|| SchemaFault::new(keyword, value, bound.to_owned()))
    })
}

fn has_misread_class(pattern: &str) -> bool {
    let mut is_class = false;
    let mut rest = pattern.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\\' => _ = rest.next(),
            '[' if is_class => return true,
            '[' => {
                is_class = true;
                rest.next_if_eq(&'^');
                if rest.peek() == Some(&']') {
                    return true;
                }
            }
            '&' | '-' | '~' if is_class && rest.peek() == Some(&character) => return true,
            ']' => is_class = false,
            _ => {}
        }
    }
    false
}

fn is_dropped(character: char) -> bool {
    character == '\u{7f}' || character < ' ' && !"\u{8}\u{c}\n\r\t".contains(character)
}

fn drops_text(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(is_dropped),
        _ => members(value).into_iter().any(|(_, member)| drops_text(member)),
    }
}

fn drops_pattern(pattern: &str) -> bool {
    fn drops(part: &Hir) -> bool {
        match part.kind() {
            HirKind::Literal(literal) => str::from_utf8(&literal.0).is_ok_and(|text| text.contains(is_dropped)),
            HirKind::Class(Class::Unicode(class)) => {
                let ranges = class.ranges();
                !ranges.is_empty() && ranges.iter().all(|range| (range.start()..=range.end()).all(is_dropped))
            }
            HirKind::Repetition(repetition) => drops(&repetition.sub),
            HirKind::Capture(group) => drops(&group.sub),
            HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(drops),
            _ => false,
        }
    }
    regex_syntax::parse(pattern).is_ok_and(|pattern| drops(&pattern))
}

/// Magnitude from which 64-bit floats exceed signed 64-bit integers.
const MAX_BOUND: f64 = (1_u64 << 63) as f64;

/// Magnitude from which 64-bit floats skip integers.
const MAX_EXCLUSIVE: f64 = (1_u64 << 53) as f64;

/// Returns true if the value is or contains an integer that a float cannot represent.
fn is_rounded(value: &Value) -> bool {
    let is_exact = |integer: i64| integer != i64::MIN && integer as f64 as i64 == integer;
    match value {
        Value::Number(number) => number.as_i64().map_or(number.is_u64(), |integer| !is_exact(integer)),
        _ => members(value).into_iter().any(|(_, member)| is_rounded(member)),
    }
}

/// Returns the members of an object or the elements of an array, by name or index.
fn members(value: &Value) -> Vec<(Cow<'_, str>, &Value)> {
    match value {
        Value::Object(members) => members.iter().map(|(name, member)| (Cow::from(name), member)).collect(),
        Value::Array(elements) => {
            elements.iter().enumerate().map(|(index, element)| (index.to_string().into(), element)).collect()
        }
        _ => Vec::new(),
    }
}

/// Escapes a name for a JSON pointer.
fn pointer_token(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Rewrites and compiles a schema. Returns the error, if any, without the references that led to it.
fn schema_fault(mut schema: Value) -> Option<String> {
    rewrite(&mut schema);
    let builder = GrammarBuilder::new(None, LIMITS);
    let compile = || JsonCompileOptions::default().json_to_llg_with_overrides(builder, schema);
    let error = panic_utils::catch_unwind(AssertUnwindSafe(compile)).err()?;
    format!("{error:#}").split("\n  while processing ").next().map(str::to_owned)
}

/// Returns the fault of a schema, and the JSON pointer of the smallest part that alone has it, or of the smallest one found within
/// [`STEP_TIME`]. `None` if the schema has no fault.
pub(crate) fn find_fault(schema: &Value) -> Option<(String, String)> {
    let until = now() + STEP_TIME;
    // references of a part that is compiled alone lead into the whole schema, one of its definitions, or count as unknown keywords
    let redirected = |part: &Value, follows: bool| {
        let text = part.to_string().replace(r##""$ref":"#/""##, r##""$ref":"#""##);
        let reference = if follows { r##""$ref":"#/$defs/whole"## } else { r##""reference":"#"## };
        serde_json::from_str::<Value>(&text.replace(r##""$ref":"#"##, reference)).ok()
    };
    let whole = [false, true].map(|follows| redirected(schema, follows));
    let fault_of = |part: &Value, follows: bool| {
        let mut part = redirected(part, follows)?;
        part.as_object_mut()?.insert("$defs".into(), json!({ "whole": whole[usize::from(follows)].as_ref()? }));
        schema_fault(part)
    };
    let reason = schema_fault(schema.clone())?;
    let fault = fault_of(schema, true);
    let has_fault = |part: &Value, follows| now() < until && fault.is_some() && fault_of(part, follows) == fault;
    // a part may refer to the one around it, so those with a fault of their own come first
    let at_fault = |parts, are_keywords: bool| {
        let fails = |follows| {
            members(parts).into_iter().find(|(name, part)| match are_keywords {
                true => has_fault(&Value::from_iter([(&**name, (*part).clone())]), follows),
                false => has_fault(part, follows),
            })
        };
        fails(false).or_else(|| fails(true))
    };
    let mut pointer = "#".to_owned();
    let mut part = schema;
    let mut followed = HashSet::new();
    while let Some((keyword, value)) = part.is_object().then(|| at_fault(part, true)).flatten() {
        if let ("$ref", Value::String(reference)) = (&*keyword, value)
            && let Some(target) = resolve(schema, reference).filter(|_| followed.insert(reference))
        {
            reference.trim_end_matches('/').clone_into(&mut pointer);
            part = target;
            continue;
        }
        pointer += &format!("/{}", pointer_token(&keyword));
        part = value;
        if !has_fault(part, true) {
            let Some((name, member)) = at_fault(part, false) else { break };
            pointer += &format!("/{}", pointer_token(&name));
            part = member;
        }
    }
    Some((reason, clip(&pointer, REASON_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_found_where_the_client_wrote_it() {
        let wrong = json!({ "pattern": "(" });
        for (schema, expected) in [
            (json!({ "$ref": "#/$defs/name", "$defs": { "name": wrong } }), "#/$defs/name/pattern"),
            (
                json!({ "properties": { "a": { "$ref": "#/$defs/b" } }, "$defs": { "b": { "items": wrong } } }),
                "#/$defs/b/items/pattern",
            ),
            (
                json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/definitions/b" } }, "definitions": { "b": wrong } }),
                "#/definitions/b/pattern",
            ),
            (
                json!({ "items": { "$ref": "#/properties/a" }, "properties": { "a": { "anyOf": [{ "type": "null" }, wrong] } } }),
                "#/properties/a/anyOf/1/pattern",
            ),
            (json!({ "properties": { "a": { "$ref": "#/" }, "b": { "type": "strin" } } }), "#/properties/b/type"),
            (json!({ "properties": { "b": { "items": { "$ref": "#/$defs/none" } } } }), "#/properties/b/items/$ref"),
            (
                json!({ "allOf": [{ "$ref": "#/$defs/a" }], "$defs": { "a": { "anyOf": [{ "$ref": "#/$defs/a" }, { "if": {} }] } } }),
                "#/$defs/a/anyOf/1/if",
            ),
        ] {
            let (reason, pointer) = find_fault(&schema).unwrap();
            assert_eq!(pointer, expected, "{schema}: {reason}");
            assert!(!reason.contains("whole"), "{reason}");
        }
    }

    #[test]
    fn property_names_are_not_keywords() {
        let long = |letter: &str| json!({ "pattern": letter.repeat(4000) });
        let both = json!({ "allOf": [long("a"), long("b")] });
        for name in ["default", "const", "enum", "examples", "definitions", "$defs"] {
            for schema in [
                json!({ "properties": { name: both } }),
                json!({ "patternProperties": { name: both } }),
                json!({ "$ref": format!("#/$defs/{name}"), "$defs": { name: both } }),
                json!({ "properties": { name: long("a") }, "patternProperties": { name: long("b") } }),
            ] {
                check_patterns("constraint.json_schema", &schema).unwrap_err();
            }
            check_patterns("constraint.json_schema", &json!({ "properties": { "a": { name: both } } })).unwrap();
            let least = json!({ "properties": { name: { "minProperties": 3 } } });
            let error = check_schema("constraint.json_schema", &least, "").unwrap_err().to_string();
            assert!(error.ends_with(&format!("found 3, at #/properties/{name}/minProperties")), "{error}");
        }
    }
}
