//! Shares that a running guest does not have: their server died, or the guest could not mount them.
//!
//! Invariant: the servers are the real ones, killed by the test; the node API reports a loss, which
//! the agent reads for the pod's events, and counted by the daemon that found it.
//! Failure: what was reported, or the metric.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{PodOptions, Stack, eventually, in_time, program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodeapi::v1;

use crate::shares::{await_no_process, directory, is_confined, servers};

const SOON: Duration = Duration::from_secs(180);
/// A file of the guest.
const IN_THE_WAY: &str = "/etc/passwd";
/// A directory of the guest.
const IN_PLACE_OF_A_FILE: &str = "/sbin";

#[tokio::test]
#[ignore = "needs root"]
async fn a_share_that_a_guest_loses_or_cannot_mount_is_reported_and_counted() -> Result<()> {
    let stack = Stack::up()?;
    serve_metrics(&stack).await?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let mut pod = PodOptions::named("losing", &stack);
    let shares = [("one", "/one"), ("two", "/two"), ("third", IN_THE_WAY)];
    for (name, path) in shares {
        pod.writable
            .push((directory(&stack, name)?, path.to_owned()));
    }
    // Where kubelet has a single file of a volume.
    let folder = "kubelet/pods/uid-losing/volume-subpaths/config/vm";
    let folder = stack.dir().join(folder);
    fs::create_dir_all(&folder)?;
    let file = folder.join("0");
    fs::write(&file, "text")?;
    pod.mounts.push((file, IN_PLACE_OF_A_FILE.to_owned()));
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    cri.await_agent(&container).await?;
    let mounts = cri.shell(&container, "cat /proc/mounts").await?;
    ensure!(mounts.contains(" /one virtiofs") && mounts.contains(" /two virtiofs"));
    ensure!(!mounts.contains(IN_THE_WAY), "{mounts}");
    let not_mounted = format!("could not mount its directory {IN_THE_WAY}");
    let not_written = format!("could not write a file of its mount {IN_PLACE_OF_A_FILE}");
    let reported = await_reported(&stack, &container, &[&not_mounted, &not_written]).await?;
    ensure!(reported.len() == 2, "{reported:?}");
    ensure!(lost(&stack)? == "0", "{}", lost(&stack)?);

    kill_server(&stack, "one")?;
    let first = "lost its directory /one";
    let reported = await_reported(&stack, &container, &[&not_mounted, &not_written, first]).await?;
    ensure!(reported.len() == 3, "{reported:?}");
    await_lost(&stack, "1").await?;

    // The next daemon finds that out by itself, and watches the other server.
    stack.kill("vmlet", Signal::SIGKILL).await?;
    stack.restart("vmlet")?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    await_reported(&stack, &container, &[&not_mounted, first]).await?;
    await_lost(&stack, "1").await?;
    kill_server(&stack, "two")?;
    let second = "lost its directory /two";
    await_reported(&stack, &container, &[&not_mounted, first, second]).await?;
    await_lost(&stack, "2").await?;

    // The end of a machine is no loss.
    cri.stop(&container, 0).await?;
    cri.remove_pod(&sandbox).await?;
    await_no_process(&stack).await?;
    ensure!(lost(&stack)? == "2", "{}", lost(&stack)?);
    stack.await_clean().await?;
    stack.down()
}

/// Restarts the daemon with a socket for its metrics.
async fn serve_metrics(stack: &Stack) -> Result<()> {
    let file = stack.dir().join("vmlet.toml");
    let socket = stack.dir().join("run/metrics.sock");
    let settings = fs::read_to_string(&file)?;
    let metrics = format!("\n[metrics]\nlisten = \"{}\"\n", socket.display());
    fs::write(&file, settings + &metrics)?;
    stack.kill("vmlet", Signal::SIGTERM).await?;
    stack.restart("vmlet")
}

/// The daemon counts a loss right after it has reported it.
async fn await_lost(stack: &Stack, wanted: &str) -> Result<()> {
    eventually(SOON, "the metric", || async {
        let lost = lost(stack)?;
        ensure!(lost == wanted, "{lost}");
        Ok(())
    })
    .await
}

/// How many shares the daemon has found lost.
fn lost(stack: &Stack) -> Result<String> {
    let mut curl = stack.command("curl");
    curl.args(["-fsS", "-m", "30", "--unix-socket"])
        .arg(stack.dir().join("run/metrics.sock"))
        .arg("http://localhost/metrics");
    let output = program::output(&mut curl)?;
    let page = String::from_utf8(output.stdout)?;
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix("vmlet_shares_lost_total "));
    value.map(str::to_owned).with_context(|| page.clone())
}

/// Kills the process that has a directory of the stack, as the kernel may for want of memory.
fn kill_server(stack: &Stack, name: &str) -> Result<()> {
    let directory = stack.dir().join("shared").join(name);
    let directory = directory.to_string_lossy();
    let serves_it = |process: &Path| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line)
            .split('\0')
            .any(|word| word == directory)
    };
    let mut all = servers(stack)?.into_iter();
    let server = all.find(|process| serves_it(process) && is_confined(process));
    let server = server.with_context(|| format!("no process serves {directory}"))?;
    let number = server.file_name().context("a process has a number")?;
    let pid = Pid::from_raw(number.to_string_lossy().parse()?);
    Ok(kill(pid, Signal::SIGKILL)?)
}

/// Waits until a stream of the node API has said all of this about a machine; what it said last.
async fn await_reported(stack: &Stack, container: &str, texts: &[&str]) -> Result<Vec<String>> {
    let events = eventually(SOON, "a stream of machines", || async {
        let mut node = stack.node().await?.node;
        let events = node.watch_machines(v1::WatchMachinesRequest {}).await?;
        Ok(events.into_inner())
    });
    let mut events = events.await?;
    in_time(SOON, &format!("{texts:?}"), async {
        loop {
            let event = events.message().await?.context("the stream ended")?;
            let machine = event.machine.filter(|one| one.container_id == container);
            let Some(machine) = machine else {
                continue;
            };
            let is_reported =
                |text: &&str| machine.unsupported.iter().any(|one| one.contains(*text));
            if texts.iter().all(is_reported) {
                return Ok(machine.unsupported);
            }
        }
    })
    .await
}
