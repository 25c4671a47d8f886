//! The protobuf wire format, one top-level field at a time.
//!
//! Invariant: the raw parts of all fields, put together again, are the message.
//! Failure: [`Malformed`] at the first byte that is no field; what came before stays valid.

use bytes::{Bytes, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

/// Bytes that are no protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub struct Malformed;

/// One top-level field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its number.
    pub number: u32,
    /// All of its bytes, tag included.
    pub raw: &'a [u8],
    /// The content of a string, bytes or message field.
    pub content: Option<&'a [u8]>,
}

/// The top-level fields of `message` in order. The walk ends after the first [`Malformed`].
pub fn fields(message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, Malformed>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = split(rest);
        rest = match &field {
            Ok(field) => &rest[field.raw.len()..],
            Err(Malformed) => &[],
        };
        Some(field)
    })
}

/// The message with only those fields that `keep` wants, bytes unchanged.
///
/// # Errors
///
/// [`Malformed`] when `message` is no message.
pub fn keep_fields(
    message: &[u8],
    mut keep: impl FnMut(&Field<'_>) -> bool,
) -> Result<Bytes, Malformed> {
    let mut kept = BytesMut::with_capacity(message.len());
    for field in fields(message) {
        let field = field?;
        if keep(&field) {
            kept.extend_from_slice(field.raw);
        }
    }
    Ok(kept.freeze())
}

/// A length-delimited field with this content.
pub fn tagged(number: u32, content: &[u8]) -> Bytes {
    let mut field = BytesMut::with_capacity(content.len() + 10);
    encode_key(number, WireType::LengthDelimited, &mut field);
    encode_varint(content.len() as u64, &mut field);
    field.extend_from_slice(content);
    field.freeze()
}

fn split(message: &[u8]) -> Result<Field<'_>, Malformed> {
    let mut rest = message;
    let (number, wire) = decode_key(&mut rest).map_err(|_| Malformed)?;
    let mut content = None;
    let length = match wire {
        WireType::Varint => {
            decode_varint(&mut rest).map_err(|_| Malformed)?;
            0
        }
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => {
            let length = decode_varint(&mut rest).map_err(|_| Malformed)?;
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            content = Some(rest.get(..length).ok_or(Malformed)?);
            length
        }
        // Groups are not part of proto3; no message of the CRI can hold one.
        WireType::StartGroup | WireType::EndGroup => return Err(Malformed),
    };
    let rest = rest.get(length..).ok_or(Malformed)?;
    Ok(Field {
        number,
        raw: &message[..message.len() - rest.len()],
        content,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_dropped_and_every_other_byte_stays() {
        let message = [&tagged(1, b"config")[..], &tagged(2, b"runc"), b"\x18\x07"].concat();
        let kept = keep_fields(&message, |field| field.number != 2).unwrap();
        assert_eq!(kept, [&tagged(1, b"config")[..], b"\x18\x07"].concat());
    }

    #[test]
    fn a_length_beyond_the_end_is_malformed() {
        let all: Vec<_> = fields(b"\x0a\x7fshort").collect();
        assert_eq!(all, [Err(Malformed)]);
    }

    #[test]
    fn a_length_beyond_the_address_space_is_malformed() {
        let message = b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        assert_eq!(fields(message).next(), Some(Err(Malformed)));
    }
}
