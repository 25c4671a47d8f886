//! `demo`: from a bare machine to a virtual machine that serves a page as a pod, and back.
//!
//! Invariant: exit code 0 only if the packages were there, everything was built, the guest booted
//! and answered over the pod network, it went down when it was requested to, and nothing leaked.
//! Failure: the step that failed is the error; the stack is taken down all the same.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::build::Build;
use super::{guest, setup};
use crate::report::Report;
use crate::stack::Session;
use crate::{run, workspace};

const POD: &str = "hello-vm";
/// What the guest prints when its network is up; the address follows.
const READY: &str = "VMLET-GUEST-READY ip=";
/// Software emulation on a busy machine boots the guest in this time, with room to spare.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
/// The pod's grace period and a little more.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

/// Sets up this computer and runs a virtual machine as a pod.
#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// Only list missing packages, do not install them.
    #[arg(long)]
    no_install: bool,
}

impl Demo {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let mut report = Report::default();
        let started = Instant::now();
        if setup::ensure(self.no_install)? != ExitCode::SUCCESS {
            return Ok(ExitCode::FAILURE);
        }
        report.add("packages", "done", started.elapsed());
        println!("demo: building");
        report.step("build", || Build::DEVELOPMENT.programs())?;
        report.step("guest image", guest::ensure)?;

        let session = report.step("node stack up", || Session::up("demo"))?;
        let outcome = show(&session, &mut report);
        let down = report.step("node stack down", || session.down());
        outcome?;
        down.context("take the stack down")?;
        println!("\n{report}\n\ndemo: passed");
        Ok(ExitCode::SUCCESS)
    }
}

fn show(session: &Session, report: &mut Report) -> Result<()> {
    let started = Instant::now();
    let mut follower = follow(session)?;
    let console = forward(&mut follower)?;
    let address = wait_until_ready(&console)?;
    report.add("VM boots as a pod", "done", started.elapsed());

    let page = report.step("page over the pod network", || fetch(session, &address))?;
    println!("demo: http://{address}/ says: {page}");
    ensure!(
        page == POD,
        "the guest's page does not hold its host name {POD}"
    );

    println!("demo: asking the VM to stop");
    let started = Instant::now();
    run::output(session.command("vmletctl").args(["node", "stop", POD])).context("stop the VM")?;
    wait_for_the_end(follower, &console)?;
    report.add("VM stops with grace", "done", started.elapsed());
    report.step("pod removed", || {
        run::output(session.command("vmletctl").args(["rm", POD]))
    })?;
    Ok(())
}

/// Starts `vmletctl run`, which shows the console until the VM has ended.
fn follow(session: &Session) -> Result<Child> {
    let mut vmletctl = session.command("vmletctl");
    vmletctl
        .args(["run", "--keep", "--log-dir"])
        .arg(session.layout().path("logs"));
    vmletctl
        .arg(workspace::root().join("examples/hello-vm.yaml"))
        .stdout(Stdio::piped());
    println!("demo: vmletctl run examples/hello-vm.yaml");
    vmletctl.spawn().with_context(|| run::describe(&vmletctl))
}

/// Copies the console to the terminal, and to us line by line.
fn forward(follower: &mut Child) -> Result<mpsc::Receiver<String>> {
    let stdout = follower.stdout.take().context("vmletctl has no output")?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            let line = printable(&line);
            let mut terminal = std::io::stdout().lock();
            // The demonstration continues when its output is closed.
            let _ = writeln!(terminal, "  console | {line}");
            let _ = sender.send(line);
        }
    });
    Ok(lines)
}

/// The text of a console line, without what would move the cursor of the terminal it is shown on.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line).replace('\u{1b}', "^");
    text.chars()
        .filter(|character| !character.is_control())
        .collect()
}

fn wait_until_ready(console: &mpsc::Receiver<String>) -> Result<String> {
    let deadline = Instant::now() + BOOT_TIMEOUT;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        match console.recv_timeout(left) {
            Ok(line) => {
                if let Some((_, rest)) = line.split_once(READY) {
                    return Ok(rest
                        .split_whitespace()
                        .next()
                        .unwrap_or_default()
                        .to_owned());
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                bail!("vmletctl run ended before the guest was up")
            }
            Err(mpsc::RecvTimeoutError::Timeout) => break,
        }
    }
    bail!(
        "the guest did not come up within {} s",
        BOOT_TIMEOUT.as_secs()
    )
}

fn fetch(session: &Session, address: &str) -> Result<String> {
    let mut curl = session.command("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "10"]);
    let page = run::output(curl.arg(format!("http://{address}/")))?;
    Ok(page.trim().to_owned())
}

/// The console ends with the VM; the exit code is the guest's.
fn wait_for_the_end(mut follower: Child, console: &mpsc::Receiver<String>) -> Result<()> {
    let deadline = Instant::now() + STOP_TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match console.recv_timeout(left) {
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // Remaining programs are stopped with the stack.
                let _ = follower.kill();
                bail!("the VM did not end within {} s", STOP_TIMEOUT.as_secs());
            }
        }
    }
    let status = follower.wait().context("collect vmletctl")?;
    ensure!(
        status.success(),
        "the VM did not power off cleanly: vmletctl run ended with {status}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_the_ready_line() {
        let (sender, console) = mpsc::channel();
        for line in ["VMLET-BOOTS 1", "x VMLET-GUEST-READY ip=10.88.0.2 "] {
            sender.send(line.to_owned()).unwrap();
        }
        assert_eq!(wait_until_ready(&console).unwrap(), "10.88.0.2");
        drop(sender);
        assert!(
            wait_until_ready(&console)
                .unwrap_err()
                .to_string()
                .contains("ended before")
        );
    }

    #[test]
    fn a_guest_cannot_move_our_cursor() {
        assert_eq!(printable(b"\x1b[2Jhello\r"), "^[2Jhello");
    }
}
