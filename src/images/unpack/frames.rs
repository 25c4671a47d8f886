//! What a decoder says: frames of a kind, a number and perhaps bytes.
//!
//! Invariant: the reader takes a decoder for taken over by its input: it allocates no more than a
//! frame may have, and takes frames in an order that makes sense, or none.
//! Failure: an I/O error of the kind `InvalidData`.

use std::io::{self, Read, Write};

use super::CHUNK;

/// Longest text of a frame, in bytes.
const LONGEST: usize = 1000;

/// Stands for a size that is not known.
const UNKNOWN: u64 = u64::MAX;

/// A part of what a decoder says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A disk begins, of this size where that is known.
    Disk(Option<u64>),
    /// So many bytes of the disk follow.
    Data(usize),
    /// The disk ends.
    End,
    /// The input ends; whether there was a disk in it.
    Done(bool),
    /// What is wrong with what is in the input.
    Content(String),
    /// The input is broken.
    Broken(String),
}

impl Frame {
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let frame = match self {
            Self::Disk(size) => head(0, size.unwrap_or(UNKNOWN)).to_vec(),
            Self::Data(length) => head(1, *length as u64).to_vec(),
            Self::End => head(2, 0).to_vec(),
            Self::Done(found) => head(3, u64::from(*found)).to_vec(),
            Self::Content(text) => with_text(4, text),
            Self::Broken(text) => with_text(5, text),
        };
        to.write_all(&frame)
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let [kind, number @ ..] = head;
        let number = u64::from_le_bytes(number);
        let length = usize::try_from(number).unwrap_or(usize::MAX);
        Ok(match kind {
            0 => Self::Disk(Some(number).filter(|size| *size != UNKNOWN)),
            1 if (1..=CHUNK).contains(&length) => Self::Data(length),
            2 => Self::End,
            3 => Self::Done(number == 1),
            4 if length <= LONGEST => Self::Content(text(from, length)?),
            5 if length <= LONGEST => Self::Broken(text(from, length)?),
            _ => return Err(odd()),
        })
    }
}

fn head(kind: u8, number: u64) -> [u8; 9] {
    let mut head = [kind; 9];
    head[1..].copy_from_slice(&number.to_le_bytes());
    head
}

fn with_text(kind: u8, text: &str) -> Vec<u8> {
    let text = &text.as_bytes()[..text.floor_char_boundary(LONGEST)];
    [&head(kind, text.len() as u64), text].concat()
}

fn text(from: &mut impl Read, length: usize) -> io::Result<String> {
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The decoder says what makes no sense.
pub(super) fn odd() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "its decoder gave an answer that makes no sense: the image may be malformed",
    )
}

/// Reads the content of a disk that has begun.
#[derive(Debug)]
pub(super) struct Content<'a, R> {
    frames: &'a mut R,
    /// Bytes that are left of the present frame; `None`: the disk has ended.
    left: Option<usize>,
}

impl<'a, R: Read> Content<'a, R> {
    pub(super) const fn new(frames: &'a mut R) -> Self {
        let left = Some(0);
        Self { frames, left }
    }
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut left = match self.left {
            None => return Ok(0),
            Some(left) => left,
        };
        if left == 0 {
            left = match Frame::read(self.frames)? {
                Frame::Data(length) => length,
                Frame::End => {
                    self.left = None;
                    return Ok(0);
                }
                Frame::Broken(text) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
                _ => return Err(odd()),
            };
        }
        let most = left.min(buffer.len());
        let read = self.frames.read(&mut buffer[..most])?;
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left = Some(left - read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let all = [
            Frame::Disk(None),
            Frame::Disk(Some(7)),
            Frame::Data(CHUNK),
            Frame::End,
            Frame::Done(true),
            Frame::Done(false),
            Frame::Content("two disks".to_owned()),
            Frame::Broken("ä".repeat(LONGEST / 2)),
        ];
        let mut bytes = Vec::new();
        all.iter()
            .for_each(|frame| frame.write(&mut bytes).unwrap());
        let mut from = bytes.as_slice();
        for frame in &all {
            assert_eq!(Frame::read(&mut from).unwrap(), *frame);
        }
        Frame::read(&mut from).unwrap_err();
        // A long text is cut, not refused.
        let mut bytes = Vec::new();
        let long = "ä".repeat(LONGEST);
        Frame::Content(long).write(&mut bytes).unwrap();
        assert!(matches!(
            Frame::read(&mut bytes.as_slice()).unwrap(),
            Frame::Content(text) if text.len() == LONGEST
        ));
        for hostile in [
            head(1, 0),
            head(1, CHUNK as u64 + 1),
            head(4, u64::MAX),
            head(5, LONGEST as u64 + 1),
            head(9, 0),
        ] {
            let refused = Frame::read(&mut hostile.as_slice()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn content_ends_with_its_disk() {
        let mut bytes = Vec::new();
        for (frame, data) in [
            (Frame::Data(3), b"abc".as_slice()),
            (Frame::Data(2), b"de"),
            (Frame::End, b""),
            (Frame::Done(true), b""),
        ] {
            frame.write(&mut bytes).unwrap();
            bytes.extend(data);
        }
        let mut from = bytes.as_slice();
        let mut content = Vec::new();
        Content::new(&mut from).read_to_end(&mut content).unwrap();
        assert_eq!(content, b"abcde");
        assert_eq!(Frame::read(&mut from).unwrap(), Frame::Done(true));
        // One that ends early, or begins another disk, is none.
        let mut rest = Vec::new();
        Content::new(&mut &bytes[..10])
            .read_to_end(&mut rest)
            .unwrap_err();
        let mut second = Vec::new();
        Frame::Disk(None).write(&mut second).unwrap();
        let odd = Content::new(&mut second.as_slice()).read(&mut [0; 8]);
        assert_eq!(odd.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
