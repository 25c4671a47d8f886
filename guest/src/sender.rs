//! Sends one output stream of a session.
//!
//! Invariant: it waits for the process only while there is room, and never while it has something
//! to send to a host. Output that others write after the end of the process is not waited for.
//! Failure: a stream that breaks ends.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use guestapi::{CHUNK, Stream};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;

use crate::outbox::Outbox;
use crate::outputs::{Event, Next, Outputs};

/// Our end of a process's output.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) stream: Stream,
    pub(crate) file: OwnedFd,
    /// Set when the process has ended.
    pub(crate) ended: Arc<Event>,
}

/// What a sender has waited for.
enum Change {
    Output,
    Woken,
    Ended,
}

impl Sender {
    /// Sends the stream until its session is closed.
    pub(crate) fn send(self, outputs: &Outputs, outbox: &Outbox<'_>) {
        let stream = self.stream;
        let wake = outputs.event(stream);
        let mut this = Some(self);
        let mut buffer = vec![0; CHUNK];
        loop {
            match (outputs.next(stream), &this) {
                (Next::Send(data), _) => {
                    let number = data.session;
                    let end = data.end;
                    // A host that is not connected gets it when it adopts the session.
                    outbox.send(data);
                    if end {
                        outputs.end_sent(stream, number);
                    }
                }
                (Next::Read(room), Some(sender)) => match sender.read(wake, &mut buffer[..room]) {
                    Some(0) => {
                        outputs.finish(stream);
                        this = None;
                    }
                    Some(length) => outputs.push(stream, &buffer[..length]),
                    None => {}
                },
                (Next::Read(_), None) | (Next::Wait, _) => {
                    let mut files = [PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
                    let _ = poll(&mut files, PollTimeout::NONE);
                    wake.clear();
                }
                (Next::Nothing, _) => return,
            }
        }
    }

    /// Reads something, 0 at the end; `None` when it was woken before.
    fn read(&self, wake: &Event, buffer: &mut [u8]) -> Option<usize> {
        let change = self.await_change(wake);
        self.take(&change, wake, buffer)
    }

    fn take(&self, change: &Change, wake: &Event, buffer: &mut [u8]) -> Option<usize> {
        match change {
            Change::Output => read_some(&self.file, buffer),
            Change::Ended => self.read_rest(buffer),
            Change::Woken => {
                wake.clear();
                None
            }
        }
    }

    /// What the process wrote before its end: it may have done so after the look at the pipe that
    /// found it empty, and have ended before the look at the event.
    fn read_rest(&self, buffer: &mut [u8]) -> Option<usize> {
        let mut files = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut files, PollTimeout::ZERO) {
                Ok(0) => return Some(0),
                Ok(_) => return read_some(&self.file, buffer),
                Err(Errno::EINTR) => {}
                Err(_) => return Some(0),
            }
        }
    }

    fn await_change(&self, wake: &Event) -> Change {
        let files = [self.file.as_fd(), wake.as_fd(), self.ended.as_fd()];
        loop {
            let mut files = files.map(|file| PollFd::new(file, PollFlags::POLLIN));
            match poll(&mut files, PollTimeout::NONE) {
                Ok(_) => {
                    let [output, woken, _] = files.map(|file| file.any().unwrap_or(true));
                    return match (output, woken) {
                        (_, true) => Change::Woken,
                        (true, _) => Change::Output,
                        _ => Change::Ended,
                    };
                }
                Err(Errno::EINTR) => {}
                Err(_) => return Change::Ended,
            }
        }
    }
}

/// 0 at the end; a terminal whose processes have ended gives an error instead. `None` when there is
/// nothing now.
fn read_some(file: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    match read(file, buffer) {
        // Two of our descriptors share the flag O_NONBLOCK of a terminal.
        Err(Errno::EINTR | Errno::EAGAIN) => None,
        other => Some(other.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::{pipe, write};

    use super::*;

    #[test]
    fn what_is_written_right_before_the_end_is_read() {
        let (file, writer) = pipe().unwrap();
        let ended = Arc::new(Event::new().unwrap());
        let wake = Event::new().unwrap();
        let stream = Stream::Stdout;
        let sender = Sender {
            stream,
            file,
            ended,
        };
        let mut buffer = [0; 16];
        write(&writer, b"last line").unwrap();
        // As when the look at the pipe came before the bytes.
        assert_eq!(sender.take(&Change::Ended, &wake, &mut buffer), Some(9));
        assert_eq!(&buffer[..9], b"last line");
        // A descendant has the pipe open and writes nothing.
        assert_eq!(sender.take(&Change::Ended, &wake, &mut buffer), Some(0));
        drop(writer);
        assert_eq!(sender.take(&Change::Ended, &wake, &mut buffer), Some(0));
    }
}
