//! JSON that cloud-init's reader of YAML takes for the same.
//!
//! Invariant: PyYAML reads each number as the number, and each text as the text.
//! Failure: none.

use std::io::{self, Write};

use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The value in lines.
pub(super) fn lines(value: &Value) -> String {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, ForYaml(PrettyFormatter::new()));
    // A value has only keys that are texts, and memory takes every byte: this cannot fail.
    let written = value.serialize(&mut serializer);
    debug_assert!(written.is_ok(), "{written:?}");
    text.push(b'\n');
    String::from_utf8_lossy(&text).into_owned()
}

/// The usual layout, with YAML's numbers and escapes.
struct ForYaml(PrettyFormatter<'static>);

impl Formatter for ForYaml {
    /// To PyYAML `1e20` is a text: it needs a dot and the sign of the exponent.
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let text = format!("{value:?}");
        let Some((digits, exponent)) = text.split_once('e') else {
            return writer.write_all(text.as_bytes());
        };
        let dot = if digits.contains('.') { "" } else { ".0" };
        let sign = if exponent.starts_with('-') { "" } else { "+" };
        write!(writer, "{digits}{dot}e{sign}{exponent}")
    }

    /// PyYAML refuses some characters that are not escaped, and takes others for ends of lines.
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        for c in fragment.chars() {
            match c {
                '\u{7f}'..='\u{9f}'
                | '\u{2028}'
                | '\u{2029}'
                | '\u{feff}'
                | '\u{fffe}'
                | '\u{ffff}' => write!(writer, "\\u{:04x}", u32::from(c))?,
                c => write!(writer, "{c}")?,
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(1e20, "1.0e+20")]
    #[case(1.5e300, "1.5e+300")]
    #[case(2.5e-9, "2.5e-9")]
    #[case(1e-9, "1.0e-9")]
    #[case(1000.0, "1000.0")]
    #[case(-0.5, "-0.5")]
    fn a_float_has_the_dot_and_the_sign_that_pyyaml_needs(#[case] float: f64, #[case] text: &str) {
        assert_eq!(lines(&json!(float)), format!("{text}\n"));
        assert_eq!(serde_json::from_str::<f64>(text).unwrap(), float);
    }

    #[test]
    fn lists_and_maps_have_a_line_for_each_value() {
        let value = json!({"a": [1, {}, []], "b\u{7f}": "\u{2028}\"\n\u{1f600}"});
        let expected = "{\n  \"a\": [\n    1,\n    {},\n    []\n  ],\n  \"b\\u007f\": \"\\u2028\\\"\\n\u{1f600}\"\n}\n";
        assert_eq!(lines(&value), expected);
    }
}
