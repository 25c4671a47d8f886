//! Sizes of a client's terminal: JSON objects, one after the other, with or without spaces between.
//!
//! Invariant: at most [`LONGEST_SIZE`] bytes wait for the rest of an object.
//! Failure: [`Malformed`]; nothing after it can be read.

use serde::Deserialize;

use crate::Malformed;

/// Longest object, in bytes.
pub const LONGEST_SIZE: usize = 1024;

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Rows, at least 1.
    pub rows: u16,
    /// Columns, at least 1.
    pub columns: u16,
}

/// An object of the protocol.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Object {
    #[serde(rename = "Width", alias = "width")]
    width: u16,
    #[serde(rename = "Height", alias = "height")]
    height: u16,
}

/// Reads sizes.
#[derive(Debug, Default)]
pub struct Sizes(Vec<u8>);

impl Sizes {
    /// Takes bytes of the stream; returns the last size in them. A size without rows or columns is
    /// none, as in the Go server.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when something else than such objects comes.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Size>, Malformed> {
        self.0.extend_from_slice(bytes);
        let mut last = None;
        let mut taken = 0;
        while let Some(length) = object(&self.0[taken..])? {
            let object = &self.0[taken..taken + length];
            let Object { width, height } =
                serde_json::from_slice(object).map_err(|_| Malformed("terminal size"))?;
            if width > 0 && height > 0 {
                last = Some(Size {
                    rows: height,
                    columns: width,
                });
            }
            taken += length;
        }
        self.0.drain(..taken);
        if self.0.len() > LONGEST_SIZE {
            return Err(Malformed("terminal size"));
        }
        Ok(last)
    }
}

/// The length of the first object, with what is before it, if its end is there: a parser would take
/// a number that is cut for a wrong one.
fn object(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut depth = 0_usize;
    let mut is_text = false;
    let mut is_escaped = false;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' if depth > 0 => is_text = !is_text,
            _ if is_text => {}
            b'{' => depth += 1,
            b'}' if depth == 1 => return Ok(Some(at + 1)),
            b'}' if depth > 1 => depth -= 1,
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ if depth == 0 => return Err(Malformed("terminal size")),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Option<Size> = Some(Size {
        rows: 50,
        columns: 132,
    });

    #[test]
    fn objects_come_in_pieces_or_together() {
        let text = br#"{"Width":132,"Height":50}"#;
        assert_eq!(Sizes::default().feed(text), Ok(SIZE));
        let twice = [&text[..], b"\n", text].concat();
        let mut sizes = Sizes::default();
        for (at, byte) in twice.iter().enumerate() {
            let size = sizes.feed(&[*byte]).unwrap();
            let is_whole = at + 1 == text.len() || at + 1 == twice.len();
            assert_eq!(size, SIZE.filter(|_| is_whole), "byte {at}");
        }
        let zero = br#"{"Width":0,"Height":5}{}"#;
        assert_eq!(sizes.feed(zero), Ok(None));
        assert_eq!(sizes.feed(&[zero, &text[..]].concat()), Ok(SIZE));
    }

    #[test]
    fn a_number_may_be_cut_anywhere() {
        let text = br#"{"x":-7.5e-1,"Width":132,"Height":50}"#;
        for at in 0..text.len() {
            let mut sizes = Sizes::default();
            assert_eq!(sizes.feed(&text[..at]), Ok(None), "{at}");
            assert_eq!(sizes.feed(&text[at..]), Ok(SIZE), "{at}");
        }
    }

    #[test]
    fn other_bytes_end_the_stream() {
        for odd in [&b"x"[..], b"7", br#"{"Width":70000,"Height":1}"#] {
            Sizes::default().feed(odd).unwrap_err();
        }
        let spaces = [b' '; LONGEST_SIZE + 1];
        Sizes::default().feed(&spaces).unwrap_err();
        let endless = [&br#"{"Width":"#[..], &[b' '; LONGEST_SIZE]].concat();
        Sizes::default().feed(&endless).unwrap_err();
    }
}
