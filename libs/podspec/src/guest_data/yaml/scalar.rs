//! Scalars as PyYAML resolves and constructs them.
//!
//! Invariant: a plain scalar has the kind that the implicit resolvers of PyYAML's safe loader give it;
//! these are those of YAML 1.1, but for what PyYAML's expressions leave out. A value is the one that the
//! loader constructs, or the scalar is refused.
//! Failure: [`Refusal`].

use std::num::IntErrorKind;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Number, Value};

use super::refusal::Refusal;

/// What the tag of a scalar says, written or resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Bool,
    Int,
    Float,
    Text,
    Binary,
    Date,
    /// `<<`, which is only read as a key.
    Merge,
    /// `=`, which is only read as a key, and is a text there.
    Default,
}

/// What a node of a document is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Value(Value),
    /// The text in a value that is bytes to PyYAML.
    Bytes(String),
    Merge,
    Default,
}

/// What a key of a map is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Text(String),
    Merge,
}

impl Kind {
    /// The kind of a scalar without quotes and tag.
    pub(super) fn of_plain(text: &str) -> Self {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => Self::Null,
            "yes" | "Yes" | "YES" | "no" | "No" | "NO" | "true" | "True" | "TRUE" | "false"
            | "False" | "FALSE" | "on" | "On" | "ON" | "off" | "Off" | "OFF" => Self::Bool,
            "<<" => Self::Merge,
            "=" => Self::Default,
            _ if is_float(text) => Self::Float,
            _ if is_int(text) => Self::Int,
            _ if after_date(text) == Some("") => Self::Date,
            _ => Self::Text,
        }
    }

    /// The kind that a tag of YAML names, if it is one of scalars.
    pub(super) fn of_tag(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::Null,
            "bool" => Self::Bool,
            "int" => Self::Int,
            "float" => Self::Float,
            // cloud-init adds the second one to the safe loader.
            "str" | "python/unicode" => Self::Text,
            "binary" => Self::Binary,
            "timestamp" => Self::Date,
            "merge" => Self::Merge,
            "value" => Self::Default,
            _ => return None,
        })
    }

    /// What a scalar of this kind is.
    pub(super) fn node(self, text: &str) -> Result<Node, Refusal> {
        Ok(Node::Value(match self {
            Self::Null => Value::Null,
            Self::Bool => truth(text)?.into(),
            Self::Int => integer(text)?.into(),
            Self::Float => float(text)?.into(),
            Self::Text => text.into(),
            Self::Binary => return binary(text).map(Node::Bytes),
            Self::Date => return Err(Refusal::NoJson("without quotes this is a date")),
            Self::Merge => return Ok(Node::Merge),
            Self::Default => return Ok(Node::Default),
        }))
    }
}

impl Node {
    /// The node as an element of a list or the value of a key.
    pub(super) fn into_value(self) -> Result<Value, Refusal> {
        match self {
            Self::Value(value) => Ok(value),
            Self::Bytes(text) => Ok(text.into()),
            Self::Merge | Self::Default => Err(Refusal::Unread),
        }
    }

    /// The node as a key.
    pub(super) fn into_key(self) -> Result<Key, Refusal> {
        match self {
            Self::Value(Value::String(text)) => Ok(Key::Text(text)),
            Self::Merge => Ok(Key::Merge),
            Self::Default => Ok(Key::Text("=".to_owned())),
            Self::Value(Value::Array(_) | Value::Object(_)) | Self::Bytes(_) => {
                Err(Refusal::NoJson("this key is no text"))
            }
            Self::Value(_) => Err(Refusal::NoJson("without quotes this key is no text")),
        }
    }
}

/// `1.5`, `.5`, `1_0.`, `1.5e+3`, `1:30.5`, `.inf`, `.nan`: a dot is needed, and the sign of an exponent;
/// a number that begins with the dot has no sign.
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let Some((whole, rest)) = unsigned.split_once('.') else {
        return false;
    };
    let fraction = rest.split(['e', 'E']).next().unwrap_or(rest);
    let exponent = &rest[fraction.len()..];
    let is_whole = if whole.is_empty() {
        text.starts_with('.') && is_grouped(fraction)
    } else {
        is_grouped(whole) || exponent.is_empty() && is_sexagesimal(whole)
    };
    is_whole && fraction.bytes().all(is_digit_or_gap) && is_exponent(exponent)
}

fn is_exponent(text: &str) -> bool {
    let digits = text.strip_prefix(['e', 'E']);
    let digits = digits.and_then(|rest| rest.strip_prefix(['-', '+']));
    text.is_empty() || digits.is_some_and(|digits| after_digits(digits, 1, usize::MAX) == Some(""))
}

/// `0`, `10`, `1_000`, `0b11`, `017`, `0x1F`, `1:30`: `08` is a text, and so is `0o17`.
fn is_int(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let are = |digits: &str, is_one: fn(u8) -> bool| {
        !digits.is_empty() && digits.bytes().all(|byte| byte == b'_' || is_one(byte))
    };
    if let Some(digits) = unsigned.strip_prefix("0b") {
        return are(digits, |byte| matches!(byte, b'0' | b'1'));
    }
    if let Some(digits) = unsigned.strip_prefix("0x") {
        return are(digits, |byte| byte.is_ascii_hexdigit());
    }
    if let Some(digits) = unsigned.strip_prefix('0') {
        return digits.is_empty() || are(digits, |byte| matches!(byte, b'0'..=b'7'));
    }
    is_grouped(unsigned) || is_sexagesimal(unsigned)
}

/// A digit, then digits and `_`.
fn is_grouped(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(is_digit_or_gap)
}

/// Digits to the base of 60, with colons.
fn is_sexagesimal(text: &str) -> bool {
    let Some((first, rest)) = text.split_once(':') else {
        return false;
    };
    let is_one = |digits: &str| {
        matches!(
            digits.as_bytes(),
            [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']
        )
    };
    is_grouped(first) && rest.split(':').all(is_one)
}

fn is_digit_or_gap(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_digit()
}

/// What follows a date: `2001-01-01`, or with a time `2001-1-1 1:01:01.5 +1:30`.
fn after_date(text: &str) -> Option<&str> {
    let month = after_digits(text, 4, 4)?.strip_prefix('-')?;
    let day = after_digits(month, 1, 2)?.strip_prefix('-')?;
    let rest = after_digits(day, 1, 2)?;
    if rest.is_empty() {
        return (text.len() == "2001-01-01".len()).then_some(rest);
    }
    let dense = rest.trim_start_matches([' ', '\t']);
    let hour = match rest.strip_prefix(['T', 't']) {
        Some(hour) => hour,
        None if dense.len() < rest.len() => dense,
        None => return None,
    };
    let minute = after_digits(hour, 1, 2)?.strip_prefix(':')?;
    let second = after_digits(minute, 2, 2)?.strip_prefix(':')?;
    let rest = after_digits(second, 2, 2)?;
    let fraction = rest.strip_prefix('.');
    let rest = fraction.map_or(rest, |digits| {
        digits.trim_start_matches(|c: char| c.is_ascii_digit())
    });
    after_zone(rest)
}

fn after_zone(text: &str) -> Option<&str> {
    if text.is_empty() {
        return Some(text);
    }
    let zone = text.trim_start_matches([' ', '\t']);
    if let Some(rest) = zone.strip_prefix('Z') {
        return Some(rest);
    }
    let rest = after_digits(zone.strip_prefix(['-', '+'])?, 1, 2)?;
    match rest.strip_prefix(':') {
        Some(minutes) => after_digits(minutes, 2, 2),
        None => Some(rest),
    }
}

/// What follows the digits at the beginning, if there are as many.
fn after_digits(text: &str, least: usize, most: usize) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let count = text.len() - rest.len();
    (least..=most).contains(&count).then_some(rest)
}

fn truth(text: &str) -> Result<bool, Refusal> {
    match text.to_lowercase().as_str() {
        "yes" | "true" | "on" => Ok(true),
        "no" | "false" | "off" => Ok(false),
        _ => Err(Refusal::Unread),
    }
}

fn integer(text: &str) -> Result<Number, Refusal> {
    let dense = text.replace('_', "");
    let digits = dense.strip_prefix(['-', '+']).unwrap_or(&dense);
    let size = if let Some(digits) = digits.strip_prefix("0b") {
        number(digits, 2)?
    } else if let Some(digits) = digits.strip_prefix("0x") {
        number(digits, 16)?
    } else if digits.starts_with('0') {
        number(digits, 8)?
    } else {
        let mut total = 0_i128;
        for part in digits.split(':') {
            let more = total.checked_mul(60).ok_or(TOO_LARGE)?;
            total = more.checked_add(number(part, 10)?).ok_or(TOO_LARGE)?;
        }
        total
    };
    let value = if dense.starts_with('-') { -size } else { size };
    let signed = i64::try_from(value).map(Number::from);
    signed
        .or_else(|_| u64::try_from(value).map(Number::from))
        .map_err(|_| TOO_LARGE)
}

const TOO_LARGE: Refusal = Refusal::NoJson("this number is too large");

fn number(digits: &str, radix: u32) -> Result<i128, Refusal> {
    i128::from_str_radix(digits, radix).map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => TOO_LARGE,
        _ => Refusal::Unread,
    })
}

fn float(text: &str) -> Result<Number, Refusal> {
    let dense = text.replace('_', "").to_lowercase();
    let digits = dense.strip_prefix(['-', '+']).unwrap_or(&dense);
    let size = match digits {
        ".inf" | ".nan" => f64::INFINITY,
        _ => {
            let mut total = 0.0;
            let mut base = 1.0;
            for part in digits.split(':').rev() {
                let part: f64 = part.parse().map_err(|_| Refusal::Unread)?;
                total += part * base;
                base *= 60.0;
            }
            total
        }
    };
    let value = if dense.starts_with('-') { -size } else { size };
    Number::from_f64(value).ok_or(Refusal::NoJson("this number is not finite"))
}

fn binary(text: &str) -> Result<String, Refusal> {
    let dense: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let bytes = STANDARD.decode(dense).map_err(|_| Refusal::Unread)?;
    let no_text = Refusal::NoJson("the value of !!binary is no text");
    String::from_utf8(bytes).map_err(|_| no_text)
}
