//! Messages of WebSocket channels: the number of a channel before the content.
//!
//! Invariant: what [`Channels::write`] makes, [`Channels::read`] reads back. Channels with
//! consecutive numbers from 0 are the streams of a session; a channel that the session does not
//! have is for its caller to ignore, as the Go server does.
//! Failure: [`Malformed`]; the session cannot go on then.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use crate::Malformed;

/// Before the number of a channel whose content ends.
const CLOSE: u8 = 255;

/// The form of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// The number is a byte, and the content follows as it is.
    Binary,
    /// The number is a digit, and the content follows in base64.
    Base64,
}

/// The messages of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// Their form.
    pub coding: Coding,
    /// Whether clients end channels one by one.
    pub has_close: bool,
}

/// A message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// Content for a channel.
    Content(u8, Bytes),
    /// The client sends no more on a channel.
    Close(u8),
    /// Nothing.
    Empty,
}

/// A message for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoded {
    /// A binary message.
    Binary(Bytes),
    /// A text message.
    Text(String),
}

impl Channels {
    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when it names no channel to close, or is no base64.
    pub fn read(self, mut message: Bytes) -> Result<Received, Malformed> {
        let Some(first) = message.first().copied() else {
            return Ok(Received::Empty);
        };
        let content = message.split_off(1);
        match self.coding {
            Coding::Binary if self.has_close && first == CLOSE => match *content {
                [channel] => Ok(Received::Close(channel)),
                _ => Err(Malformed("end of a channel")),
            },
            Coding::Binary => Ok(Received::Content(first, content)),
            Coding::Base64 => {
                let content = STANDARD.decode(&content);
                let content = content.map_err(|_| Malformed("base64 text"))?;
                Ok(Received::Content(first.wrapping_sub(b'0'), content.into()))
            }
        }
    }

    /// A message with content. The coding [`Coding::Base64`] has channels below 79.
    #[must_use]
    pub fn write(self, channel: u8, content: &[u8]) -> Encoded {
        match self.coding {
            Coding::Binary => Encoded::Binary([&[channel], content].concat().into()),
            Coding::Base64 => {
                let mut text = String::from(char::from(b'0'.wrapping_add(channel)));
                STANDARD.encode_string(content, &mut text);
                Encoded::Text(text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RAW: Channels = Channels {
        coding: Coding::Binary,
        has_close: true,
    };
    const TEXT: Channels = Channels {
        coding: Coding::Base64,
        has_close: false,
    };

    #[test]
    fn messages_have_the_form_that_the_go_server_documents() {
        let written = RAW.write(1, b"\n");
        assert_eq!(written, Encoded::Binary(Bytes::from_static(&[1, 10])));
        assert_eq!(TEXT.write(1, b"\n"), Encoded::Text("1Cg==".to_owned()));
        let read = TEXT.read(Bytes::from_static(b"0Zm9vCgo="));
        let content = Bytes::from_static(b"foo\n\n");
        assert_eq!(read, Ok(Received::Content(0, content)));
    }

    #[test]
    fn only_the_newest_version_ends_channels() {
        let end = Bytes::from_static(&[255, 0]);
        assert_eq!(RAW.read(end.clone()), Ok(Received::Close(0)));
        let old = Channels {
            has_close: false,
            ..RAW
        };
        let content = Bytes::from_static(&[0]);
        assert_eq!(old.read(end), Ok(Received::Content(255, content)));
        for odd in [&[255][..], &[255, 0, 0]] {
            RAW.read(Bytes::copy_from_slice(odd)).unwrap_err();
        }
        TEXT.read(Bytes::from_static(b"0=")).unwrap_err();
        assert_eq!(RAW.read(Bytes::new()), Ok(Received::Empty));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(channel in 0_u8..79, content: Vec<u8>) {
            for channels in [RAW, TEXT] {
                let message = match channels.write(channel, &content) {
                    Encoded::Binary(bytes) => bytes,
                    Encoded::Text(text) => text.into(),
                };
                let expected = Received::Content(channel, content.clone().into());
                prop_assert_eq!(channels.read(message), Ok(expected));
            }
        }
    }
}
