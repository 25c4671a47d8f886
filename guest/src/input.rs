//! Standard input of a session.
//!
//! Invariant: the host has credit for what it sent in its own connection, when the process can read
//! it.
//! Failure: what a process does not read because it has closed its input is dropped: the client may
//! send it all the same.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use guestapi::{Credit, Stream};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::write;

use crate::outbox::Outbox;
use crate::outputs::{Event, Outputs};

/// What a terminal takes as the end of its input.
const END_OF_INPUT: u8 = 4;

/// What the host sends to standard input.
#[derive(Debug)]
pub(crate) enum Input {
    Bytes {
        /// The number of the session for the host that sent them.
        number: u64,
        bytes: Vec<u8>,
    },
    End,
}

/// Our end of a process's input.
#[derive(Debug)]
pub(crate) struct Stdin {
    pub(crate) stdin: OwnedFd,
    /// Set when the process has ended.
    pub(crate) ended: Arc<Event>,
    pub(crate) has_terminal: bool,
}

impl Stdin {
    /// Writes the input, and acknowledges what the process can read.
    pub(crate) fn feed(&self, input: &Receiver<Input>, outputs: &Outputs, outbox: &Outbox<'_>) {
        for input in input {
            match input {
                Input::Bytes { number, bytes } => {
                    self.write_all(&bytes);
                    if outputs.number() == Some(number) {
                        outbox.send(Credit {
                            session: number,
                            stream: Stream::Stdin.into(),
                            bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                        });
                    }
                }
                Input::End if self.has_terminal => self.write_all(&[END_OF_INPUT]),
                Input::End => return,
            }
        }
    }

    /// Gives up when no process reads any more.
    fn write_all(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match write(&self.stdin, bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    let mut files = [
                        PollFd::new(self.stdin.as_fd(), PollFlags::POLLOUT),
                        PollFd::new(self.ended.as_fd(), PollFlags::POLLIN),
                    ];
                    let polled = poll(&mut files, PollTimeout::NONE);
                    if polled.is_ok() && files[1].any() == Some(true) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }
}
