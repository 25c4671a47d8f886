//! Connects the guest's serial port to the files of its console.
//!
//! libvirt's command line names a socket for the port. QEMU writes single bytes to it: with a client
//! that has not read, some of them are logged twice and the guest waits. So the port gets standard
//! input and output, and these become a FIFO for what is typed and the console's file, which the
//! daemon passes on.
//!
//! Invariant: the FIFO has a writer as long as QEMU runs, so that it never ends, and a reader only if
//! the port is there.
//! Failure: an error, and the arguments stay as libvirt composed them.

use std::ffi::{OsStr, OsString};
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use fdpass::Connection;
use nix::unistd::{close, dup2_stdin, dup2_stdout};

/// The name that libvirt gives serial port 0.
const PORT: &str = "socket,id=charserial0,";
/// The same port on standard input and output. Signals of a terminal are the guest's.
const STANDARD: &str = "stdio,id=charserial0,signal=off";
/// Largest message in bytes.
const MAX_MESSAGE: usize = 64;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("failed to reach the daemon for the console")]
    Connect(#[source] fdpass::Error),
    #[error("failed to receive the console")]
    Receive(#[source] fdpass::Error),
    #[error("the console came with {0} descriptors instead of 2")]
    Descriptors(usize),
    #[error("{0} arguments describe serial port 0, and one has to")]
    Arguments(usize),
    #[error("failed to become standard input or output")]
    Duplicate(#[source] nix::Error),
}

/// The files of a console, open.
#[derive(Debug)]
pub(crate) struct Console {
    /// A FIFO, for reading and writing.
    input: OwnedFd,
    /// A file, for appending.
    output: OwnedFd,
}

/// Collects the files of this start; each step takes at most `deadline`.
pub(crate) fn fetch(socket: &Path, deadline: Duration) -> Result<Console, Error> {
    let connection = Connection::connect_within(socket, deadline).map_err(Error::Connect)?;
    connection
        .set_deadline(Some(deadline))
        .map_err(Error::Connect)?;
    let received = connection.recv(MAX_MESSAGE).map_err(Error::Receive)?;
    let files = received.map(|message| message.fds).unwrap_or_default();
    let files = <[OwnedFd; 2]>::try_from(files);
    let [input, output] = files.map_err(|files| Error::Descriptors(files.len()))?;
    Ok(Console { input, output })
}

impl Console {
    /// Makes the files the serial port of these arguments.
    pub(crate) fn connect(self, arguments: &mut [OsString]) -> Result<(), Error> {
        let port = port(arguments)?;
        dup2_stdout(&self.output).map_err(Error::Duplicate)?;
        // Last: a process that reads the FIFO counts as the console.
        dup2_stdin(&self.input).map_err(Error::Duplicate)?;
        // libvirt's socket has no listener any more: a client is refused, and does not wait.
        if let Some(listener) = listener(&arguments[port]) {
            // Fails when libvirt has not passed it on after all.
            let _ = close(listener);
        }
        arguments[port] = STANDARD.into();
        Ok(())
    }
}

/// The index of the argument that describes the port.
fn port(arguments: &[OsString]) -> Result<usize, Error> {
    let is_port = |argument: &OsString| argument.to_str().is_some_and(|a| a.starts_with(PORT));
    let all = arguments.iter().enumerate();
    let found: Vec<_> = all.filter(|(_, argument)| is_port(argument)).collect();
    match found[..] {
        [(index, _)] => Ok(index),
        _ => Err(Error::Arguments(found.len())),
    }
}

/// The descriptor of the socket, if libvirt passes it on.
fn listener(argument: &OsStr) -> Option<RawFd> {
    let options = argument.to_str()?.split(',');
    let mut numbers = options.filter_map(|option| option.strip_prefix("fd="));
    numbers.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, BorrowedFd};

    use fdpass::Listener;

    use super::*;

    const PASSED: &str = "socket,id=charserial0,fd=62,server=on,wait=off,logfile=/dev/fdset/0";
    const NAMED: &str = "socket,id=charserial0,path=/c/serial,server=on,wait=off";

    fn line(parts: &[&str]) -> Vec<OsString> {
        parts.iter().map(OsString::from).collect()
    }

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn the_port_is_found_and_its_descriptor_is_that_of_the_socket() {
        let other = "socket,id=charserial01,fd=7,server=on";
        for (described, expected) in [(PASSED, Some(62)), (NAMED, None)] {
            let arguments = line(&["-chardev", other, "-chardev", described]);
            assert_eq!(port(&arguments).unwrap(), 3);
            assert_eq!(listener(described.as_ref()), expected);
        }
    }

    #[test]
    fn without_one_port_the_arguments_stay() {
        for (parts, count) in [(&["-chardev"][..], 0), (&[PASSED, NAMED], 2)] {
            let console = Console {
                input: null(),
                output: null(),
            };
            let mut arguments = line(parts);
            let refused = console.connect(&mut arguments);
            assert!(matches!(refused, Err(Error::Arguments(found)) if found == count));
            assert_eq!(arguments, line(parts));
        }
    }

    #[test]
    fn a_console_has_two_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console");
        for count in 0..4 {
            let listener = Listener::bind(&path, 0o600).unwrap();
            let files: Vec<_> = (0..count).map(|_| null()).collect();
            let daemon = std::thread::spawn(move || {
                let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
                listener.accept().unwrap().send(b"console", &files).unwrap();
            });
            let fetched = fetch(&path, Duration::from_secs(60));
            daemon.join().unwrap();
            match (count, fetched) {
                (2, fetched) => drop(fetched.unwrap()),
                (_, Err(Error::Descriptors(found))) => assert_eq!(found, count),
                (_, other) => panic!("{other:?}"),
            }
        }
    }
}
