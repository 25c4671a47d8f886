//! The server behind a forwarded port: the same program for both runtimes.
//!
//! Invariant: every connection gets [`BYTES`] bytes as fast as it takes them, then its end.
//! Failure: a client that disconnects ends its own connection only.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::bench::Stack;
use e2e::samples::Samples;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// What a connection gets.
pub(crate) const BYTES: usize = 256 << 20;
/// Where it listens.
pub(crate) const PORT: u16 = 8000;

/// Serves until it is killed.
pub(crate) fn serve() -> Result<Samples> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("listen")?;
    println!("listening");
    for mut client in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let block = vec![0_u8; 1 << 20];
            for _ in 0..BYTES / block.len() {
                if client.write_all(&block).is_err() {
                    return;
                }
            }
        });
    }
    Ok(Samples::default())
}

/// Starts this program as a server in a network namespace; it ends with the value.
pub(crate) async fn start(stack: &Stack, netns: &Path) -> Result<Child> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns.display()));
    command.arg(std::env::current_exe()?);
    command.arg("--dir").arg(stack.path(""));
    command.args(["--count", "0", "serve"]);
    command.stdout(Stdio::piped()).kill_on_drop(true);
    let mut server = command.spawn().context("start the server")?;
    let stdout = server.stdout.take().context("no output")?;
    let line = BufReader::new(stdout).lines().next_line().await?;
    ensure!(line.as_deref() == Some("listening"), "the server ended");
    Ok(server)
}

/// Puts a link with the guest's address beside the tap of a pod that has no guest.
pub(crate) async fn stand_in(netns: &Path, address: &str) -> Result<()> {
    let address = format!("{address}/24");
    let commands: [&[&str]; 5] = [
        &[
            "link", "add", "standin", "type", "veth", "peer", "name", "guest0",
        ],
        &["link", "set", "standin", "master", "vmbr0", "up"],
        &["address", "add", &address, "dev", "guest0"],
        &["link", "set", "guest0", "up"],
        &["link", "set", "lo", "up"],
    ];
    for arguments in commands {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", netns.display()));
        let status = command.arg("ip").args(arguments).status().await?;
        ensure!(status.success(), "ip {arguments:?}: {status}");
    }
    Ok(())
}
