//! A web server inside a stack that sends one half of a file, and the rest when the test says so.
//!
//! Invariant: each client gets the length of the whole file first; the rest comes after
//! [`HeldServer::release`] only.
//! Failure: a client that goes away ends its thread; the end of the server ends all.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::Result;
use nix::sys::socket::{Shutdown, shutdown};

use crate::stack::Stack;

/// The server; dropping it ends it.
#[derive(Debug)]
pub struct HeldServer {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    body: Vec<u8>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    requests: usize,
    is_released: bool,
}

impl HeldServer {
    /// Serves `body` under every path, on loopback in the network namespace of the stack.
    pub fn start(stack: &Stack, body: Vec<u8>) -> Result<Self> {
        let listener = stack.listen()?;
        let server = Self {
            address: listener.local_addr()?,
            listener: Arc::new(listener),
            shared: Arc::new(Shared {
                body,
                state: Mutex::default(),
                changed: Condvar::new(),
            }),
        };
        let listener = Arc::clone(&server.listener);
        let shared = Arc::clone(&server.shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let shared = Arc::clone(&shared);
                // A client that disconnects ends its thread.
                std::thread::spawn(move || shared.answer(stream));
            }
        });
        Ok(server)
    }

    /// `host:port`.
    pub fn authority(&self) -> String {
        self.address.to_string()
    }

    /// Sends the rest to all clients, and later ones get the whole file at once.
    pub fn release(&self) {
        self.shared.change(|state| state.is_released = true);
    }

    /// How many requests came.
    pub fn requests(&self) -> usize {
        self.shared.change(|state| state.requests)
    }
}

impl Drop for HeldServer {
    fn drop(&mut self) {
        self.release();
        // The thread that accepts ends; there is nothing else to do about a failure.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
    }
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let value = change(&mut state);
        self.changed.notify_all();
        value
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = BufReader::new(stream.try_clone()?).lines();
        while head
            .next()
            .transpose()?
            .is_some_and(|line| !line.is_empty())
        {}
        self.change(|state| state.requests += 1);
        let length = self.body.len();
        let (first, rest) = self.body.split_at(length / 2);
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        )?;
        stream.write_all(first)?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let released = self.changed.wait_while(state, |state| !state.is_released);
        drop(released.unwrap_or_else(PoisonError::into_inner));
        stream.write_all(rest)
    }
}
