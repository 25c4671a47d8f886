//! The machine's virtual console on this terminal: a shell of root.
//!
//! Invariant: the terminal has its own settings again when this returns.
//! Failure: without a terminal there is no shell; `run` takes commands then.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use super::qemu;

/// Ctrl-], as in telnet.
const LEAVE: u8 = 0x1d;

/// A terminal whose keys all go to the machine.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Self> {
        let before = tcgetattr(io::stdin()).context("failed to read the terminal's settings")?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).context("failed to set the terminal")?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // There is no other terminal to complain on.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
    }
}

/// Connects terminal and console until Ctrl-] or the end of the machine.
pub(crate) fn open(run: &Path) -> Result<()> {
    ensure!(
        io::IsTerminal::is_terminal(&io::stdin()),
        "a shell needs a terminal"
    );
    let socket = run.join(qemu::SHELL);
    let mut console = UnixStream::connect(&socket)
        .with_context(|| format!("failed to connect to {}", socket.display()))?;
    let output = console.try_clone().context("failed to share the console")?;
    println!("machine: Ctrl-] leaves the shell");
    let _raw = Raw::enter()?;
    // The prompt was printed before anybody looked.
    console
        .write_all(b"\r")
        .context("failed to write to the console")?;
    std::thread::spawn(move || show(output));
    keys(io::stdin(), &mut console).context("failed to write to the console")
}

fn show(mut console: UnixStream) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = console.read(&mut bytes) {
        let mut stdout = io::stdout();
        if stdout
            .write_all(&bytes[..count])
            .and_then(|()| stdout.flush())
            .is_err()
        {
            return;
        }
    }
}

/// Sends what is typed, up to the key that leaves.
fn keys(mut from: impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let count = from.read(&mut bytes)?;
        let typed = &bytes[..count];
        match typed.iter().position(|byte| *byte == LEAVE) {
            Some(end) => return to.write_all(&typed[..end]),
            None if typed.is_empty() => return Ok(()),
            None => to.write_all(typed)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_to_the_machine_up_to_the_one_that_leaves() {
        let mut sent = Vec::new();
        keys(&b"ls\r\x1dnever"[..], &mut sent).unwrap();
        assert_eq!(sent, b"ls\r");
    }

    #[test]
    fn the_end_of_the_input_ends_the_shell() {
        let mut sent = Vec::new();
        keys(&b"exit\r"[..], &mut sent).unwrap();
        assert_eq!(sent, b"exit\r");
    }
}
