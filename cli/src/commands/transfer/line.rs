//! What the program on the node writes around the bytes of a file: a line of JSON each.
//!
//! Invariant: both sides use this type; a line is at most [`LONGEST`] bytes. No text of the other side
//! is in a line or an error, so that both can be printed.
//! Failure: [`io::Error`]; a line of another form comes from another version.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// Longest line.
const LONGEST: u64 = 1024;

/// Digits of a checksum.
const DIGITS: usize = 64;

/// What our side writes when the file is complete and checked.
pub(crate) const COMPLETE: &str = "complete\n";

/// A line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Line {
    /// The node works; percents of a file that it makes.
    Preparing(u32),
    /// The bytes from `offset` to `size` follow, or are to follow.
    Begin { size: u64, offset: u64 },
    /// Of the whole file, in hexadecimal digits.
    End { sha256: String },
}

impl Line {
    /// Reads the next one; none at the end of the stream.
    pub(crate) async fn read(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Self>> {
        let mut line = Vec::new();
        from.take(LONGEST).read_until(b'\n', &mut line).await?;
        match line.split_last() {
            None => Ok(None),
            Some((b'\n', line)) => match serde_json::from_slice(line) {
                Ok(line) if Self::is_valid(&line) => Ok(Some(line)),
                _ => Err(io::ErrorKind::InvalidData.into()),
            },
            Some(_) if line.len() as u64 == LONGEST => Err(io::ErrorKind::InvalidData.into()),
            Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn is_valid(&self) -> bool {
        let Self::End { sha256 } = self else {
            return true;
        };
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        sha256.len() == DIGITS && sha256.bytes().all(is_digit)
    }

    pub(crate) fn text(&self) -> io::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_read_as_they_were_written_and_are_bounded() {
        let lines = [
            Line::Preparing(7),
            Line::Begin { size: 9, offset: 3 },
            Line::End {
                sha256: "0a".repeat(32),
            },
        ];
        let text: String = lines.iter().map(|line| line.text().unwrap()).collect();
        let mut from = text.as_bytes();
        for line in lines {
            assert_eq!(Line::read(&mut from).await.unwrap(), Some(line));
        }
        assert_eq!(Line::read(&mut from).await.unwrap(), None);
        let endless = vec![b' '; 1 << 20];
        let mut from = &endless[..];
        assert!(Line::read(&mut from).await.is_err());
        assert!(from.len() > (1 << 20) - 2048);
    }

    #[tokio::test]
    async fn text_of_the_other_side_is_not_repeated() {
        let end = |sha256: &str| {
            let sha256 = sha256.to_owned();
            Line::End { sha256 }.text().unwrap()
        };
        for odd in [
            end("\u{1b}[2J"),
            end(&"0A".repeat(32)),
            end(&"0a".repeat(33)),
            "{\"\\u001b[2J\":1}\n".to_owned(),
            "{\"end\":\n".to_owned(),
        ] {
            let refused = Line::read(&mut odd.as_bytes()).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{odd}");
            assert_eq!(refused.to_string(), "invalid data", "{odd}");
        }
    }
}
