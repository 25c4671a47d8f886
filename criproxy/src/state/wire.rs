//! What lists and statuses need of a field beyond [`crate::wire`]: text, integers, and fields that
//! override others.
//!
//! Invariant: none of its own.
//! Failure: `None` for a field of another kind or number.

use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use crate::wire::Field;

/// The content of a string, bytes or message with this number.
pub(super) fn bytes_of<'a>(field: &Field<'a>, number: u32) -> Option<&'a [u8]> {
    field.content.filter(|_| field.number == number)
}

/// The text of a string with this number, if it is text.
pub(super) fn text_of<'a>(field: &Field<'a>, number: u32) -> Option<&'a str> {
    bytes_of(field, number).and_then(|bytes| std::str::from_utf8(bytes).ok())
}

/// The integer with this number.
pub(super) fn integer_of(field: &Field<'_>, number: u32) -> Option<u64> {
    let mut rest = field.raw;
    match decode_key(&mut rest) {
        Ok((found, WireType::Varint)) if found == number => decode_varint(&mut rest).ok(),
        _ => None,
    }
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
