//! Fetches a page continuously while a test changes something else.
//!
//! Invariant: one fetch after the other with short pauses, from the start to the end; what is slow
//! is no miss until its deadline.
//! Failure: every miss with curl's message and the moment at which it came.

use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::program;
use crate::stack::{Stack, streams};
use crate::wait::scaled;

/// Between two fetches.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for an answer: emulated guests are slow on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Fetches until it is stopped.
#[derive(Debug)]
pub struct Poller {
    stop: Sender<()>,
    thread: JoinHandle<Polled>,
    url: String,
}

#[derive(Debug, Default)]
struct Polled {
    answers: usize,
    misses: Vec<String>,
}

impl Poller {
    /// Begins to fetch `url` from inside the node's network; an answer names `whose` page it is.
    pub fn start(stack: &Stack, url: &str, whose: &str) -> Result<Self> {
        let mut curl = stack.command("curl");
        let timeout = scaled(TIMEOUT)?.as_secs().to_string();
        curl.args(["-fsS", "-m", &timeout, url]);
        let (stop, stopped) = channel();
        let whose = whose.to_owned();
        Ok(Self {
            stop,
            thread: std::thread::Builder::new()
                .name("poller".into())
                .spawn(move || poll(curl, &whose, &stopped))?,
            url: url.to_owned(),
        })
    }

    /// Ends; returns the number of replies, or an error with every miss.
    pub fn end(self) -> Result<usize> {
        // A thread that has ended already shows it below.
        let _ = self.stop.send(());
        let url = self.url;
        let polled = self.thread.join();
        let polled = polled.map_err(|_| anyhow!("the poller of {url} panicked"))?;
        let Polled { answers, misses } = polled;
        ensure!(
            misses.is_empty(),
            "{url}: {} misses beside {answers} answers:\n{}",
            misses.len(),
            misses.join("\n")
        );
        ensure!(answers > 0, "{url} was not fetched once");
        Ok(answers)
    }
}

fn poll(mut curl: Command, whose: &str, stopped: &Receiver<()>) -> Polled {
    let begun = Instant::now();
    let mut polled = Polled::default();
    loop {
        let at = begun.elapsed();
        match program::output(&mut curl) {
            Ok(output) if String::from_utf8_lossy(&output.stdout).contains(whose) => {
                polled.answers += 1;
            }
            Ok(output) => polled.misses.push(format!("{at:?}: {}", streams(&output))),
            Err(error) => polled.misses.push(format!("{at:?}: {error:#}")),
        }
        if stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
            return polled;
        }
    }
}
