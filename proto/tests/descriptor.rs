//! Compares the compiled protocol with the table of wire facts, line by line, in both directions.
//!
//! Invariant: the descriptor, written in the form of `tests/fixtures/cri-fields.tsv`, gives the
//! same set of lines: every method, field and enum value, with number, type, label and streaming.
//! Failure: the lines missing from either side are printed.

#![allow(
    clippy::unwrap_used,
    reason = "clippy excuses test functions, not their helpers"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cri_proto::FILE_DESCRIPTOR_SET;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MethodDescriptorProto,
};

const PACKAGE: &str = ".runtime.v1.";

#[test]
fn the_compiled_protocol_has_exactly_the_lines_of_the_table() {
    let compiled = compiled_lines(&file());
    let table = table_lines();
    let missing: Vec<_> = table.difference(&compiled).collect();
    let extra: Vec<_> = compiled.difference(&table).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "only in the table: {missing:#?}\nonly in the proto: {extra:#?}"
    );
}

#[test]
fn the_protocol_has_41_methods_and_463_fields() {
    let lines = compiled_lines(&file());
    let count = |kind: &str| lines.iter().filter(|l| l.starts_with(kind)).count();
    assert_eq!((count("rpc\t"), count("field\t")), (41, 463));
}

#[test]
fn a_changed_number_type_label_or_stream_is_noticed() {
    let table = table_lines();
    let mut renumbered = file();
    renumbered.message_type[0].field[0].number = Some(77);
    let mut retyped = file();
    retyped.message_type[0].field[0].set_type(Type::Bytes);
    let mut relabelled = file();
    relabelled.message_type[0].field[0].set_label(Label::Repeated);
    let mut optional = file();
    optional.message_type[0].field[0].proto3_optional = Some(true);
    let mut streamed = file();
    streamed.service[0].method[0].server_streaming = Some(true);
    let mut dropped = file();
    dropped.enum_type[0].value.pop();
    for (what, changed) in [
        ("number", renumbered),
        ("type", retyped),
        ("label", relabelled),
        ("presence", optional),
        ("stream", streamed),
        ("enum value", dropped),
    ] {
        assert_ne!(compiled_lines(&changed), table, "{what}");
    }
}

fn file() -> FileDescriptorProto {
    let mut set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    assert_eq!(
        set.file.len(),
        1,
        "the protocol is one file and imports nothing"
    );
    let file = set.file.remove(0);
    assert_eq!((file.package(), file.syntax()), ("runtime.v1", "proto3"));
    file
}

/// The table without comments. The mark of secrets is left out: `prost_types` does not know the
/// option; what it is for is tested where `AuthConfig` is printed.
fn table_lines() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/cri-fields.tsv");
    fs::read_to_string(path)
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.replace("\t sensitive", "\t").trim_end().to_owned())
        .collect()
}

fn compiled_lines(file: &FileDescriptorProto) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for service in &file.service {
        for method in &service.method {
            lines.insert(rpc_line(service.name(), method));
        }
    }
    for message in &file.message_type {
        message_lines(message, &mut lines);
    }
    for values in &file.enum_type {
        enum_lines("", values, &mut lines);
    }
    lines
}

fn rpc_line(service: &str, method: &MethodDescriptorProto) -> String {
    let streaming = match (method.client_streaming(), method.server_streaming()) {
        (false, false) => "",
        (false, true) => "server-stream",
        (true, false) => "client-stream",
        (true, true) => "both-stream",
    };
    let name = method.name();
    let input = method.input_type();
    let output = method.output_type();
    let input = in_package(input);
    let output = in_package(output);
    format!("rpc\t{service}\t{name}\t{input}\t{output}\t{streaming}")
        .trim_end()
        .to_owned()
}

fn message_lines(message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = message.name();
    if message.field.is_empty() {
        lines.insert(format!("message\t{name}\t(empty)"));
    }
    for field in &message.field {
        lines.insert(field_line(message, field));
    }
    for values in &message.enum_type {
        enum_lines(&format!("{name}."), values, lines);
    }
    let helpers = message
        .nested_type
        .iter()
        .filter(|n| !is_map_entry(n))
        .count();
    assert_eq!(
        helpers, 0,
        "{name} nests messages, which the table has no form for"
    );
}

fn enum_lines(prefix: &str, values: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &values.value {
        let key = value.name();
        let number = value.number();
        lines.insert(format!("enum\t{prefix}{}\t{key}\t{number}", values.name()));
    }
}

fn field_line(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let map = message
        .nested_type
        .iter()
        .find(|n| is_map_entry(n) && field.type_name().ends_with(&format!(".{}", n.name())));
    let (kind, label) = match map {
        Some(entry) => {
            let part = |i: usize| type_name(entry, &entry.field[i]);
            (format!("map<{},{}>", part(0), part(1)), "")
        }
        None => (type_name(message, field), label(field)),
    };
    let mark = if field.options.as_ref().is_some_and(|o| o.deprecated()) {
        " deprecated"
    } else {
        ""
    };
    let owner = message.name();
    let name = field.name();
    let number = field.number();
    format!("field\t{owner}\t{name}\t{number}\t{kind}\t{label}\t{mark}")
        .trim_end()
        .to_owned()
}

fn label(field: &FieldDescriptorProto) -> &'static str {
    if field.proto3_optional() {
        "optional"
    } else if field.oneof_index.is_some() {
        "oneof"
    } else {
        match field.label() {
            Label::Optional => "",
            Label::Repeated => "repeated",
            Label::Required => "required",
        }
    }
}

fn type_name(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum => {
            let name = in_package(field.type_name());
            name.strip_prefix(&format!("{}.", message.name()))
                .unwrap_or(name)
                .to_owned()
        }
        scalar => scalar
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_lowercase(),
    }
}

fn in_package(name: &str) -> &str {
    name.strip_prefix(PACKAGE).unwrap_or(name)
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|o| o.map_entry())
}
