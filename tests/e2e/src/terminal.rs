//! A program in a terminal: what a person types and sees.
//!
//! Invariant: the program has the terminal as its controlling one, so that it notices a change of
//! its size; it is killed with the value.
//! Failure: what the program had printed.

use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::pty::{OpenptyResult, Winsize, openpty};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::program;
use crate::wait::in_time;

/// For the end of a program that was to end.
const END: Duration = Duration::from_secs(180);

/// A running program.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    /// The side of the person.
    screen: File,
    /// The side of the program.
    device: OwnedFd,
    seen: String,
}

impl Terminal {
    /// Starts a program in a terminal of 24 rows and 80 columns.
    pub fn start(command: &std::process::Command) -> Result<Self> {
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let OpenptyResult { master, slave } = openpty(Some(&size), None)?;
        let mut starter = Command::new("setsid");
        starter
            .args(["--ctty", "--wait"])
            .arg(command.get_program());
        starter.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => starter.env(name, value),
                None => starter.env_remove(name),
            };
        }
        let child = starter
            .stdin(Stdio::from(slave.try_clone()?))
            .stdout(Stdio::from(slave.try_clone()?))
            .stderr(Stdio::from(slave.try_clone()?))
            .kill_on_drop(true)
            .spawn()
            .context("start setsid")?;
        Ok(Self {
            child,
            screen: File::from_std(std::fs::File::from(master)),
            device: slave,
            seen: String::new(),
        })
    }

    /// Types.
    pub async fn keys(&mut self, keys: &str) -> Result<()> {
        self.screen.write_all(keys.as_bytes()).await?;
        Ok(self.screen.flush().await?)
    }

    /// Reads until the program has printed `text`; returns what came before it.
    pub async fn until(&mut self, text: &str) -> Result<String> {
        let mut piece = [0; 4096];
        loop {
            if let Some((before, rest)) = self.seen.split_once(text) {
                let before = before.to_owned();
                let rest = rest.to_owned();
                self.seen = rest;
                return Ok(before);
            }
            let read = self.screen.read(&mut piece).await;
            let length = read.with_context(|| format!("read after {:?}", self.seen))?;
            ensure!(length > 0, "the terminal ended after {:?}", self.seen);
            self.seen += &String::from_utf8_lossy(&piece[..length]);
        }
    }

    /// Changes the size; the program gets SIGWINCH.
    pub async fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        let rows = rows.to_string();
        let columns = columns.to_string();
        let mut stty = std::process::Command::new("stty");
        stty.args(["rows", &rows, "cols", &columns])
            .stdin(Stdio::from(self.device.try_clone()?));
        let output = program::output_of(&mut stty)?;
        ensure!(output.status.success(), "stty: {output:?}");
        Ok(())
    }

    /// Goes through a session in a guest's shell: its size, a change of it, keys that are signals,
    /// and its end with exit code 5; returns what the shell printed first, its terminal among it.
    pub async fn shell_session(&mut self) -> Result<String> {
        self.keys("stty size; tty; echo at-$((6 * 7))\r").await?;
        let first = self.until("at-42").await?;
        ensure!(first.contains("24 80"), "{first:?}");
        self.resize(30, 100).await?;
        self.keys("until stty size | grep 100; do sleep 0.1; done; echo is-$((6 * 7))\r")
            .await?;
        let printed = self.until("is-42").await?;
        ensure!(printed.contains("30 100"), "{printed:?}");
        self.keys("sh -c 'echo waits-$((6 * 7)); exec sleep 700'\r")
            .await?;
        self.until("waits-42").await?;
        self.keys("\u{3}").await?;
        self.keys("echo code-$?-$((6 * 7))\r").await?;
        self.until("code-130-42").await?;
        self.keys("exit 5\r").await?;
        Ok(first)
    }

    /// Waits for the end of the program.
    pub async fn end(mut self) -> Result<ExitStatus> {
        let end = async { Ok(self.child.wait().await?) };
        in_time(END, "the end of the program in the terminal", end).await
    }
}
