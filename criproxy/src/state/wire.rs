//! The protobuf wire format, as far as lists and statuses need it: walk over fields, append some.
//!
//! Invariant: the raw slices of all fields, in order, are the message; nothing is lost by taking one apart.
//! Failure: [`Malformed`] at the first field that is none; never a panic, whatever the bytes.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::encoding::{encode_key, encode_varint};

/// The bytes are no protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a protobuf message")]
pub(super) struct Malformed;

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field<'a> {
    /// Its number.
    pub(super) number: u32,
    /// Key and value as they are.
    pub(super) raw: &'a [u8],
    /// The value, where it is of a kind that we read.
    pub(super) value: Value<'a>,
}

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// Integers and enumerations.
    Varint(u64),
    /// Strings, bytes and messages.
    Bytes(&'a [u8]),
    /// Anything else.
    Other,
}

impl<'a> Field<'a> {
    /// The bytes of a string or message with this number.
    pub(super) fn bytes_of(&self, number: u32) -> Option<&'a [u8]> {
        match self.value {
            Value::Bytes(bytes) if self.number == number => Some(bytes),
            _ => None,
        }
    }

    /// The text of a string with this number, if it is text.
    pub(super) fn text_of(&self, number: u32) -> Option<&'a str> {
        self.bytes_of(number)
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// The integer with this number.
    pub(super) fn integer_of(&self, number: u32) -> Option<u64> {
        match self.value {
            Value::Varint(value) if self.number == number => Some(value),
            _ => None,
        }
    }
}

/// The fields of a message, in order; ends after the first error.
pub(super) fn fields(message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, Malformed>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = next(&mut rest);
        if field.is_err() {
            rest = &[];
        }
        Some(field)
    })
}

fn next<'a>(rest: &mut &'a [u8]) -> Result<Field<'a>, Malformed> {
    let start = *rest;
    let (number, wire_type) = decode_key(rest).map_err(|_| Malformed)?;
    let value = match wire_type {
        WireType::Varint => Value::Varint(decode_varint(rest).map_err(|_| Malformed)?),
        WireType::LengthDelimited => {
            let length = decode_varint(rest).map_err(|_| Malformed)?;
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            let (bytes, after) = rest.split_at_checked(length).ok_or(Malformed)?;
            *rest = after;
            Value::Bytes(bytes)
        }
        other => {
            let context = DecodeContext::default();
            skip_field(other, number, rest, context).map_err(|_| Malformed)?;
            Value::Other
        }
    };
    let raw = start.get(..start.len() - rest.len()).ok_or(Malformed)?;
    Ok(Field { number, raw, value })
}

/// Appends a string, bytes or message.
pub(super) fn put_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Appends an integer. It overrides an earlier one of that number in the same message.
pub(super) fn put_integer(number: u32, value: u64, out: &mut Vec<u8>) {
    encode_key(number, WireType::Varint, out);
    encode_varint(value, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_the_bytes_the_walk_ends_without_a_panic(bytes: Vec<u8>) {
            let mut seen = 0;
            for field in fields(&bytes) {
                seen += field.map_or(0, |field| field.raw.len());
            }
            prop_assert!(seen <= bytes.len());
        }

        #[test]
        fn the_raw_slices_are_the_message(parts: Vec<(u8, Result<u64, Vec<u8>>)>) {
            let mut message = Vec::new();
            for (number, value) in &parts {
                let number = u32::from(*number) + 1;
                match value {
                    Ok(integer) => put_integer(number, *integer, &mut message),
                    Err(bytes) => put_bytes(number, bytes, &mut message),
                }
            }
            let walked: Result<Vec<_>, _> = fields(&message).collect();
            let walked = walked.unwrap();
            prop_assert_eq!(walked.len(), parts.len());
            let raw: Vec<u8> = walked.iter().flat_map(|field| field.raw).copied().collect();
            prop_assert_eq!(raw, message);
        }
    }

    #[test]
    fn a_length_beyond_the_end_is_malformed() {
        let mut message = Vec::new();
        encode_key(1, WireType::LengthDelimited, &mut message);
        encode_varint(u64::MAX, &mut message);
        assert_eq!(fields(&message).collect::<Vec<_>>(), [Err(Malformed)]);
    }

    #[test]
    fn fixed_fields_and_groups_are_passed_over_whole() {
        let mut message = vec![
            0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x15, 1, 2, 3, 4, 0x1b, 0x08, 1, 0x1c,
        ];
        put_integer(7, 5, &mut message);
        let walked: Vec<_> = fields(&message).map(Result::unwrap).collect();
        let numbers: Vec<_> = walked.iter().map(|field| field.number).collect();
        assert_eq!(numbers, [1, 2, 3, 7]);
        assert_eq!(walked.last().unwrap().integer_of(7), Some(5));
    }
}
