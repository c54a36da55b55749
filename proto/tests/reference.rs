//! `docs/api.md` is generated from the comments of the `.proto` files. After a change of them, run:
//!
//! ```sh
//! WEIR_WRITE_DOCS=1 cargo test -p weir-proto
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic on a broken assumption")]

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};
use std::{collections::HashMap, fmt::Write, fs, path::Path};

/// Files in the order of the page.
const FILES: [&str; 7] = [
    "weir/v1/generation.proto",
    "weir/v1/summarization.proto",
    "weir/v1/codec.proto",
    "weir/v1/editing.proto",
    "weir/v1/models.proto",
    "weir/v1/latency.proto",
    "weir/v1/admin.proto",
];

const HEAD: &str = "\
# API reference

This page lists the services and messages of `weir.v1` over gRPC. It is generated from the comments in
[`proto/weir/v1`](../proto/weir/v1). An \"optional\" field may be absent, which differs from zero. A message has at most one field of
each \"one of\". Any other field that is not set is zero or empty. [The guide](guide.md) describes errors and limits.
";

/// The section of one file, with its comments by descriptor path.
struct Page<'a> {
    file: &'a FileDescriptorProto,
    comments: HashMap<&'a [i32], &'a str>,
    text: String,
}

impl<'a> Page<'a> {
    fn new(file: &'a FileDescriptorProto) -> Self {
        let locations = file.source_code_info.as_ref().map_or(&[][..], |info| &info.location);
        let comments =
            locations.iter().filter_map(|one| Some((one.path.as_slice(), one.leading_comments.as_deref()?))).collect();
        Self { file, comments, text: String::new() }
    }

    /// Returns the comment of the item at `path` as paragraphs.
    fn comment(&self, path: &[i32]) -> String {
        let comment = self.comments.get(path).copied().unwrap_or_default();
        let lines: Vec<&str> = comment.lines().map(str::trim).collect();
        lines.join("\n").trim().to_owned()
    }

    /// Returns the comment of the item at `path` as one table cell.
    fn cell(&self, path: &[i32]) -> String {
        self.comment(path).replace('\n', " ").replace('|', "\\|")
    }

    fn write(mut self) -> String {
        for (number, service) in (0..).zip(&self.file.service) {
            self.service(&[6, number], service);
        }
        for (number, message) in (0..).zip(&self.file.message_type) {
            self.message(&[4, number], message.name(), message);
        }
        for (number, one) in (0..).zip(&self.file.enum_type) {
            self.enumeration(&[5, number], one.name(), one);
        }
        self.text
    }

    fn service(&mut self, path: &[i32], service: &ServiceDescriptorProto) {
        let name = format!("{}.{}", self.file.package(), service.name());
        write!(self.text, "\n## Service `{name}`\n\n{}\n", self.comment(path)).unwrap();
        for (number, method) in (0..).zip(&service.method) {
            let stream = |streams: bool| if streams { "stream of " } else { "" };
            let input = stream(method.client_streaming()).to_owned() + &self.link(method.input_type());
            let output = stream(method.server_streaming()).to_owned() + &self.link(method.output_type());
            let comment = self.comment(&[path, &[2, number]].concat());
            write!(self.text, "\n### `{}`\n\n{input} → {output}\n\n{comment}\n", method.name()).unwrap();
        }
    }

    fn heading(&mut self, path: &[i32], name: &str) {
        write!(self.text, "\n## `{name}`\n").unwrap();
        let comment = self.comment(path);
        if !comment.is_empty() {
            write!(self.text, "\n{comment}\n").unwrap();
        }
    }

    fn message(&mut self, path: &[i32], name: &str, message: &DescriptorProto) {
        self.heading(path, name);
        if message.field.is_empty() {
            self.text.push_str("\nHas no fields.\n");
        } else {
            self.text.push_str("\n| field | number | type | |\n|---|---|---|---|\n");
        }
        for (number, field) in (0..).zip(&message.field) {
            let kind = self.kind(message, field);
            let comment = self.cell(&[path, &[2, number]].concat());
            writeln!(self.text, "| `{}` | {} | {kind} | {comment} |", field.name(), field.number()).unwrap();
        }
        for (number, one) in (0..).zip(&message.enum_type) {
            self.enumeration(&[path, &[4, number]].concat(), &format!("{name}.{}", one.name()), one);
        }
        let maps = |one: &&DescriptorProto| one.options.as_ref().is_some_and(|options| options.map_entry());
        let nested = message.nested_type.iter().filter(|one| !maps(one)).count();
        assert_eq!(nested, 0, "{name} has nested messages, which this page does not support");
    }

    fn enumeration(&mut self, path: &[i32], name: &str, one: &EnumDescriptorProto) {
        self.heading(path, name);
        self.text.push_str("\n| value | number | |\n|---|---|---|\n");
        for (number, value) in (0..).zip(&one.value) {
            let comment = self.cell(&[path, &[2, number]].concat());
            writeln!(self.text, "| `{}` | {} | {comment} |", value.name(), value.number()).unwrap();
        }
    }

    /// Returns a field's type with its cardinality.
    fn kind(&self, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
        let entry = message.nested_type.iter().find(|one| field.type_name().ends_with(&format!(".{}", one.name())));
        if let Some(entry) = entry.filter(|_| field.r#type() == Type::Message) {
            return format!("map of {} to {}", self.plain(&entry.field[0]), self.plain(&entry.field[1]));
        }
        let plain = self.plain(field);
        match field.oneof_index {
            _ if field.label() == Label::Repeated => format!("list of {plain}"),
            _ if field.proto3_optional() => format!("optional {plain}"),
            Some(index) => {
                let index = usize::try_from(index).unwrap();
                format!("one of `{}`: {plain}", message.oneof_decl[index].name())
            }
            None => plain,
        }
    }

    fn plain(&self, field: &FieldDescriptorProto) -> String {
        match field.r#type() {
            Type::Message | Type::Enum => self.link(field.type_name()),
            scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
        }
    }

    /// Returns a link to a type's section. The anchor is the heading without dots, as Markdown renderers generate it.
    fn link(&self, name: &str) -> String {
        let name = name.trim_start_matches('.').trim_start_matches(self.file.package()).trim_start_matches('.');
        format!("[`{name}`](#{})", name.replace('.', "").to_lowercase())
    }
}

fn reference() -> String {
    let set = FileDescriptorSet::decode(weir_proto::FILE_DESCRIPTOR_SET).unwrap();
    let page = |name: &str| Page::new(set.file.iter().find(|file| file.name() == name).unwrap()).write();
    assert_eq!(set.file.len(), FILES.len(), "a file of the API has no place on the page");
    FILES.into_iter().fold(HEAD.to_owned(), |text, name| text + &page(name))
}

#[test]
fn the_reference_equals_the_comments() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.md");
    let made = reference();
    if std::env::var_os("WEIR_WRITE_DOCS").is_some_and(|value| value == "1") {
        fs::write(&path, &made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap();
    let differs = made.lines().zip(kept.lines()).find(|(made, kept)| made != kept);
    assert!(
        made == kept,
        "docs/api.md is not what the .proto files say, first in {differs:?}: see proto/tests/reference.rs"
    );
}

#[test]
fn every_method_and_field_has_a_comment() {
    let set = FileDescriptorSet::decode(weir_proto::FILE_DESCRIPTOR_SET).unwrap();
    for file in &set.file {
        let page = Page::new(file);
        for (number, service) in (0..).zip(&file.service) {
            for method in 0..i32::try_from(service.method.len()).unwrap() {
                assert!(!page.comment(&[6, number, 2, method]).is_empty(), "{} {method}", service.name());
            }
        }
        for (number, message) in (0..).zip(&file.message_type) {
            for (at, field) in (0..).zip(&message.field) {
                // an enum field is described at its type
                let documented = !page.comment(&[4, number, 2, at]).is_empty() || field.r#type() == Type::Enum;
                assert!(documented, "{}.{}", message.name(), field.name());
            }
        }
    }
}
