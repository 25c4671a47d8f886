//! `kubectl exec`, `cp`, `attach` and `port-forward` of a machine, through kubelet and the proxy, while
//! the programs of the node are killed.
//!
//! Invariant: a session that a killed program carried ends with an error, what ran in the guest is
//! killed, and the next session works; no restart is counted for the machine.
//! Failure: the kind of session is named, with what kubectl printed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Terminal, eventually, in_time, program, vm_pod};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
/// Bytes that pass through a command in each direction; more in the long form.
const INPUT: usize = 8_000_000;
const LONG_INPUT: usize = 100_000_000;
/// Connections of one session at a time.
const CONNECTIONS: usize = 50;

pub(super) async fn kubectl_has_sessions_in_a_machine_across_restarts_of_every_program(
    cluster: &Cluster,
) -> Result<()> {
    let mut machine = vm_pod("machine");
    machine["spec"]["containers"][0]["livenessProbe"] = json!({
        "exec": { "command": ["sh", "-c", "test $(hostname) = machine"] },
        "periodSeconds": 1,
        "timeoutSeconds": 20,
    });
    cluster.apply(&machine)?;
    cluster.await_ready("pod/machine", READY)?;
    commands(cluster).await.context("exec")?;
    input(cluster).await.context("exec -i")?;
    terminal(cluster).await.context("exec -it")?;
    copies(cluster).context("cp")?;
    attach(cluster).await.context("attach")?;
    forward(cluster).await.context("port-forward")?;
    for (program, signal, carries) in [
        ("vmlet", Signal::SIGTERM, true),
        ("vmlet", Signal::SIGKILL, true),
        ("vmlet-criproxy", Signal::SIGKILL, false),
        ("kubelet", Signal::SIGKILL, true),
    ] {
        let cut = cut(cluster, program, signal, carries).await;
        cut.with_context(|| format!("a session during {signal} of {program}"))?;
    }
    let pod = cluster.get_json(&["pod", "machine"])?;
    let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
    ensure!(*restarts == 0, "{restarts} restarts");
    cluster.delete("pod/machine", GONE)
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::from(cluster.kubectl_command(arguments)?);
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    Ok(command)
}

async fn commands(cluster: &Cluster) -> Result<()> {
    let name = cluster.kubectl(&["exec", "machine", "--", "hostname"])?;
    ensure!(name == "machine", "{name}");
    let script = "echo to-stdout; echo to-stderr >&2; exit 7";
    let mut exec = cluster.kubectl_command(&["exec", "machine", "--", "sh", "-c", script])?;
    let failed = program::output(&mut exec)?;
    ensure!(
        failed.status.code() == Some(7) && failed.stdout == b"to-stdout\n",
        "{failed:?}"
    );
    ensure!(
        String::from_utf8_lossy(&failed.stderr).contains("to-stderr"),
        "{failed:?}"
    );
    Ok(())
}

/// What goes in comes out, byte for byte.
async fn input(cluster: &Cluster) -> Result<()> {
    let length = match std::env::var_os("VMLET_TEST_LONG") {
        Some(_) => LONG_INPUT,
        None => INPUT,
    };
    let mut sent = vec![0; length];
    fastrand::fill(&mut sent);
    let mut cat = kubectl(cluster, &["exec", "-i", "machine", "--", "cat"])?
        .stdin(Stdio::piped())
        .spawn()?;
    let mut stdin = cat.stdin.take().context("no input")?;
    let write = async {
        let written = stdin.write_all(&sent).await;
        drop(stdin);
        written
    };
    let both = async {
        let read = async { cat.wait_with_output().await };
        Ok(tokio::join!(write, read))
    };
    let (written, output) = in_time(READY, "the end of cat", both).await?;
    written?;
    let Output {
        status,
        stdout,
        stderr,
    } = output?;
    let reported = String::from_utf8_lossy(&stderr);
    ensure!(status.success(), "{reported}");
    ensure!(
        stdout == sent,
        "{} of {INPUT} bytes came back",
        stdout.len()
    );
    Ok(())
}

/// A terminal: its size, keys that are signals, and the exit code.
async fn terminal(cluster: &Cluster) -> Result<()> {
    let shell = cluster.kubectl_command(&["exec", "-it", "machine", "--", "sh"])?;
    let mut terminal = Terminal::start(&shell)?;
    in_time(READY, "a session in a terminal", terminal.shell_session()).await?;
    let status = terminal.end().await?;
    ensure!(status.code() == Some(5), "{status}");
    Ok(())
}

/// A tree of files to the guest and back.
fn copies(cluster: &Cluster) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("a/b c"))?;
    fs::write(tree.join("empty"), "")?;
    fs::write(tree.join("a/text"), "first\nsecond\n")?;
    let mut large = vec![0; 3_000_000];
    fastrand::fill(&mut large);
    fs::write(tree.join("a/b c/large"), large)?;
    fs::write(tree.join("program"), "#!/bin/sh\necho it-runs\n")?;
    fs::set_permissions(tree.join("program"), fs::Permissions::from_mode(0o755))?;
    let back = scratch.path().join("back");
    let local = tree.display().to_string();
    let returned = back.display().to_string();
    cluster.kubectl(&["cp", &local, "machine:/tmp/tree"])?;
    let printed = cluster.kubectl(&["exec", "machine", "--", "/tmp/tree/program"])?;
    ensure!(printed == "it-runs", "{printed}");
    cluster.kubectl(&["cp", "machine:/tmp/tree", &returned])?;
    let sent = files(&tree)?;
    let got = files(&back)?;
    ensure!(
        sent.len() == 4 && sent == got,
        "{:?}: {:?}",
        sent.keys(),
        got.keys()
    );
    // kubectl copies by means of the guest's tar.
    let guest = |script: &str| cluster.kubectl(&["exec", "machine", "--", "sh", "-c", script]);
    guest("for t in /bin/tar /usr/bin/tar; do [ ! -e $t ] || mv $t $t.away; done")?;
    // A small file: kubelet resets a connection that brings input for a command that has ended, and
    // kubectl then reports that alone.
    let small = format!("{local}/program");
    for arguments in [
        ["cp", &small, "machine:/tmp/other"],
        ["cp", "machine:/tmp/tree", &returned],
    ] {
        let failed = cluster.kubectl(&arguments).err();
        let failed = format!("{:#}", failed.context("a copy without tar")?);
        ensure!(failed.contains("the guest has no command"), "{failed}");
    }
    guest("for t in /bin/tar /usr/bin/tar; do [ ! -e $t.away ] || mv $t.away $t; done").map(drop)
}

/// The files of a tree with their contents.
fn files(root: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root)?.display().to_string();
                found.insert(name, fs::read(&path)?);
            }
        }
    }
    Ok(found)
}

async fn attach(cluster: &Cluster) -> Result<()> {
    let mut attach = kubectl(cluster, &["attach", "machine"])?.spawn()?;
    let mut console = BufReader::new(attach.stdout.take().context("no output")?).lines();
    let line = in_time(READY, "a tick", async { Ok(console.next_line().await?) }).await?;
    ensure!(line.is_some(), "kubectl attach ended");
    Ok(())
}

/// Many connections in one session.
async fn forward(cluster: &Cluster) -> Result<()> {
    let mut forward = kubectl(cluster, &["port-forward", "pod/machine", ":80"])?.spawn()?;
    let output = forward.stdout.take().context("no output")?;
    let mut lines = BufReader::new(output).lines();
    let line = in_time(READY, "the port", async { Ok(lines.next_line().await?) }).await?;
    let line = line.context("kubectl port-forward ended")?;
    let address = line.split_whitespace().nth(2).context("no address")?;
    let fetches = (0..CONNECTIONS).map(|_| {
        Command::new("curl")
            .args(["-sS", "-m", "120", &format!("http://{address}/")])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    });
    for fetch in fetches.collect::<std::io::Result<Vec<_>>>()? {
        let page = async { Ok(fetch.wait_with_output().await?) };
        let page = in_time(READY, "a page", page).await?;
        ensure!(page.status.success() && !page.stdout.is_empty(), "{page:?}");
    }
    ensure!(forward.try_wait()?.is_none(), "kubectl port-forward ended");
    Ok(())
}

/// A session while a program that carries it, or does not, is killed and started again.
async fn cut(cluster: &Cluster, program: &str, signal: Signal, carries: bool) -> Result<()> {
    let script = "echo begun; exec sleep 7011";
    let mut session = kubectl(cluster, &["exec", "machine", "--", "sh", "-c", script])?.spawn()?;
    await_line(&mut session, "begun").await?;
    cluster.stack().kill(program, signal).await?;
    if carries {
        let ended = in_time(READY, "the end of the session", async {
            Ok(session.wait_with_output().await?)
        });
        let ended = ended.await?;
        // kubelet gives its client no error when a daemon that was killed ends the connection.
        if signal == Signal::SIGTERM {
            let reported = String::from_utf8_lossy(&ended.stderr);
            ensure!(
                !ended.status.success() && reported.contains("shuts down"),
                "{ended:?}"
            );
        }
        cluster.stack().restart(program)?;
    } else {
        cluster.stack().restart(program)?;
        ensure!(session.try_wait()?.is_none(), "the session ended");
        drop(session);
    }
    eventually(
        READY,
        "a new session, and the end of the former command",
        || async {
            let sleepers = "ps -o args | grep '^sleep 7011' || true";
            let left = cluster.kubectl(&["exec", "machine", "--", "sh", "-c", sleepers])?;
            ensure!(left.is_empty(), "{left}");
            Ok(())
        },
    )
    .await
}

async fn await_line(session: &mut Child, text: &str) -> Result<()> {
    let mut lines = BufReader::new(session.stdout.take().context("no output")?).lines();
    let line = in_time(READY, text, async { Ok(lines.next_line().await?) }).await?;
    ensure!(line.as_deref() == Some(text), "{line:?}");
    Ok(())
}
