//! Streaming sessions of a real guest, by the client that crictl and kubelet share.
//!
//! Invariant: the sessions run through URLs of the daemon, as kubelet uses them.
//! Failure: what crictl printed.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, Terminal, await_text, cases, eventually, in_time, program, v1};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tonic::Code;

const BOOT: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);
/// Bytes of input for one command.
const INPUT: usize = 4 << 20;
/// Connections of one session at a time.
const CONNECTIONS: usize = 50;
/// What the guest counts on its console: more than a socket holds, of which each byte takes 768.
const FIRST: u32 = 100_000;
const LAST: u32 = 103_000;
/// URLs for pods of one namespace that may wait for their clients.
const MOST_URLS: usize = 250;

#[tokio::test]
#[ignore = "needs root"]
async fn sessions_reach_guests_and_end_with_the_daemon() -> Result<()> {
    let stack = Stack::up()?;
    cases!(
        &stack,
        [
            a_session_ends_with_the_daemon,
            commands_and_connections_reach_the_guest
        ]
    );
    stack.down()
}

async fn commands_and_connections_reach_the_guest(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let pod = PodOptions::named("streams", stack);
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    cri.await_agent(&container).await?;

    commands(stack, &container)?;
    input(stack, &container).await?;
    terminal(stack, &container).await?;
    connections(stack, &sandbox).await?;
    console(stack, &container, &pod.log(0)).await?;
    without_streams(stack, &cri).await?;
    // From here on no further session can begin for a minute.
    urls(stack, &cri, &container).await?;

    cri.stop(&container, 0).await?;
    let refused = stack.crictl(&["exec", &container, "true"]).err();
    let refused = format!("{:?}", refused.context("a stopped machine ran a command")?);
    ensure!(refused.contains("exited"), "{refused}");
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await
}

/// Output of both streams, exit codes, and what is refused.
fn commands(stack: &Stack, container: &str) -> Result<()> {
    let printed = stack.crictl(&["exec", container, "seq", "200000"])?;
    let lines: Vec<_> = printed.lines().collect();
    ensure!(lines.len() == 200_000, "{} lines", lines.len());
    ensure!(lines.last() == Some(&"200000"), "{:?}", lines.last());
    let script = "echo to-stdout; echo to-stderr >&2; exit 3";
    let failed = stack.crictl(&["exec", container, "sh", "-c", script]);
    let failed = format!("{:?}", failed.err().context("exit code 3 is no error")?);
    for part in ["to-stdout", "to-stderr", "exit code 3"] {
        ensure!(failed.contains(part), "{part} is not in {failed}");
    }
    let missing = stack.crictl(&["exec", container, "no-such-command"]);
    let missing = format!("{:?}", missing.err().context("no-such-command ran")?);
    ensure!(missing.contains("no command"), "{missing}");
    Ok(())
}

/// Standard input, of as much as the pipes hold and more.
async fn input(stack: &Stack, container: &str) -> Result<()> {
    let sent: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(INPUT)
        .collect();
    let mut cat = crictl(stack, &["exec", "-i", container, "cat"])?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
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
    let (written, output) = in_time(BOOT, "the end of cat", both).await?;
    written?;
    let output = output?;
    ensure!(
        output.status.success() && output.stdout == sent,
        "{output:?}"
    );
    // A command that ends before its input does.
    let mut head = crictl(
        stack,
        &[
            "exec",
            "-i",
            container,
            "sh",
            "-c",
            "read a; echo $a; exit 4",
        ],
    )?
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .kill_on_drop(true)
    .spawn()?;
    let mut stdin = head.stdin.take().context("no input")?;
    stdin.write_all(b"first\nsecond\n").await?;
    let output = in_time(SOON, "the end of the command", async {
        Ok(head.wait_with_output().await?)
    });
    let output = output.await?;
    ensure!(output.stdout == b"first\n", "{output:?}");
    let reported = String::from_utf8_lossy(&output.stderr);
    ensure!(reported.contains("exit code 4"), "{output:?}");
    drop(stdin);
    Ok(())
}

/// A terminal: its size, keys that are signals, and the exit code.
async fn terminal(stack: &Stack, container: &str) -> Result<()> {
    let shell = crictl(stack, &["exec", "-it", container, "sh"])?;
    let mut terminal = Terminal::start(shell.as_std())?;
    let session = async {
        let first = terminal.shell_session().await?;
        ensure!(first.contains("/dev/pts/"), "{first:?}");
        terminal.until("exit code 5").await.map(drop)
    };
    in_time(SOON, "a session in a terminal", session).await?;
    ensure!(
        !terminal.end().await?.success(),
        "crictl hides the exit code"
    );
    Ok(())
}

/// A machine without a port for `vmlet-guest` has no terminal and no input.
async fn without_streams(stack: &Stack, cri: &Cri) -> Result<()> {
    let mut pod = PodOptions::named("no-port", stack);
    pod.annotations
        .insert("vmlet.dev/guest-agent".to_owned(), "off".to_owned());
    let (sandbox, container) = cri.boot(&pod, stack.image()?).await?;
    cri.await_agent(&container).await?;
    commands(stack, &container)?;
    for (flag, what) in [("-t", "a terminal"), ("-i", "standard input")] {
        let refused = stack.crictl(&["exec", flag, &container, "sh"]);
        let refused = format!("{:?}", refused.err().with_context(|| flag.to_owned())?);
        ensure!(refused.contains(what), "{refused}");
    }
    cri.remove_pod(&sandbox).await?;
    Ok(())
}

/// Many connections in one session, and a port on which the guest does not listen.
async fn connections(stack: &Stack, sandbox: &str) -> Result<()> {
    let mut forward = Forward::start(stack, sandbox, &["18080:80", "18082:80"])?;
    // The Go client ends its session when a connection fails: this one has its own.
    let _refused = Forward::start(stack, sandbox, &["18081:9", "18083:80"])?;
    stack.fetch("http://127.0.0.1:18083/", SOON).await?;
    let page = stack.fetch("http://127.0.0.1:18080/", SOON).await?;
    let mut fetches = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut curl = stack.command("curl");
        curl.args(["-sS", "-m", "120", "http://127.0.0.1:18080/"]);
        fetches.push(curl.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    }
    for fetch in fetches {
        let output = program::ended("curl", fetch)?;
        ensure!(output.stdout == page.as_bytes(), "{output:?}");
    }
    let mut curl = stack.command("curl");
    let closed = program::output(curl.args(["-sS", "-m", "30", "http://127.0.0.1:18081/"]))?;
    // The connection ends as soon as the guest has refused it: 28 is curl's own time-out.
    let code = closed.status.code();
    ensure!(code != Some(0) && code != Some(28), "{closed:?}");
    // The failure leaves other sessions as they are.
    ensure!(stack.fetch("http://127.0.0.1:18080/", SOON).await? == page);
    ensure!(forward.0.try_wait()?.is_none(), "crictl port-forward ended");
    Ok(())
}

/// A URL is worth one request, and only so many wait.
async fn urls(stack: &Stack, cri: &Cri, container: &str) -> Result<()> {
    let request = v1::ExecRequest {
        container_id: container.to_owned(),
        cmd: vec!["true".to_owned()],
        stdout: true,
        ..v1::ExecRequest::default()
    };
    let mut runtime = cri.runtime.clone();
    let url = runtime.exec(request.clone()).await?.into_inner().url;
    let (base, token) = url.rsplit_once('/').context("no token")?;
    let other_kind = format!("{}/{token}", base.replace("/exec", "/attach"));
    // The first request takes the token, also when it is no upgrade.
    for (url, expected) in [(&url, "400"), (&url, "404"), (&other_kind, "404")] {
        let mut curl = stack.command("curl");
        let curl = curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", url]);
        let output = program::output(curl)?;
        ensure!(output.stdout == expected.as_bytes(), "{url}: {output:?}");
    }
    for _ in 0..MOST_URLS {
        runtime.exec(request.clone()).await?;
    }
    let refused = runtime.exec(request).await.err().context("no bound")?;
    ensure!(refused.code() == Code::ResourceExhausted, "{refused:?}");
    Ok(())
}

/// Two clients share the console, and the log loses nothing to them.
async fn console(stack: &Stack, container: &str, log: &Path) -> Result<()> {
    let mut typing = Attached::start(stack, &["attach", "-i", container])?;
    let mut reading = Attached::start(stack, &["attach", container])?;
    let mut keyboard = typing.child.stdin.take().context("no input")?;
    for client in [&mut typing, &mut reading] {
        client.is_attached().await?;
    }
    // One line, which the console has repeated before the shell runs it.
    let count = format!("i={FIRST}; while [ $i -lt {LAST} ]; do echo $i; i=$((i + 1)); done");
    let script = format!("{count}; echo the-$((40 + 2))nd\n");
    keyboard.write_all(script.as_bytes()).await?;
    for client in [&mut typing, &mut reading] {
        let printed = in_time(SOON, "the output of the guest", client.until("the-42nd")).await?;
        ensure!(numbers(&printed).eq(FIRST..LAST), "{printed:?}");
    }
    let logged = eventually(SOON, "the log", || async {
        let logged = said(&std::fs::read_to_string(log)?);
        ensure!(logged.contains("the-42nd"), "it is not there");
        Ok(logged)
    });
    let logged = logged.await?;
    ensure!(numbers(&logged).eq(FIRST..LAST), "{logged:?}");
    // The machine runs on without its clients, and others attach.
    drop((keyboard, typing, reading));
    let mut third = Attached::start(stack, &["attach", "-i", container])?;
    let mut keyboard = third.child.stdin.take().context("no input")?;
    keyboard.write_all(b"echo the-$((40 + 3))rd\n").await?;
    let printed = in_time(SOON, "the output of the guest", third.until("the-43rd"));
    printed.await?;
    on_the_node(stack, &mut third).await
}

/// `vmletctl console` is one more client.
async fn on_the_node(stack: &Stack, beside: &mut Attached) -> Result<()> {
    let program = stack.dir().join("bin/vmletctl");
    let program = program.to_str().context("a path of text")?;
    let mut command = Command::from(stack.command(program));
    let console = command.args(["node", "console", "streams"]);
    let mut local = Attached::spawn(console)?;
    let mut keyboard = local.child.stdin.take().context("no input")?;
    local.is_attached().await?;
    keyboard.write_all(b"echo the-$((40 + 4))th\n").await?;
    for client in [&mut local, beside] {
        in_time(SOON, "the output of the guest", client.until("the-44th")).await?;
    }
    Ok(())
}

/// The numbers that are lines, from [`FIRST`] on.
fn numbers(text: &str) -> impl Iterator<Item = u32> {
    let numbers = text.lines().filter_map(|line| line.trim().parse().ok());
    numbers.filter(|number| *number >= FIRST)
}

/// What the records of a log say; a line on which the guest paused has several.
fn said(log: &str) -> String {
    let mut text = String::new();
    for record in log.lines() {
        match record.splitn(4, ' ').collect::<Vec<_>>()[..] {
            [_, _, "P", part] => text.push_str(part),
            [_, _, _, line] => text.extend([line, "\n"]),
            _ => text.push('\n'),
        }
    }
    text
}

fn crictl(stack: &Stack, arguments: &[&str]) -> Result<Command> {
    let endpoint = stack.var("CONTAINER_RUNTIME_ENDPOINT")?;
    let mut command = Command::from(stack.command("crictl"));
    command
        .args(["-r", endpoint, "-i", endpoint])
        .args(arguments);
    Ok(command)
}

/// A running `crictl attach`, which ends with the value.
pub(super) struct Attached {
    pub(super) child: Child,
    output: BufReader<ChildStdout>,
}

impl Attached {
    pub(super) fn start(stack: &Stack, arguments: &[&str]) -> Result<Self> {
        Self::spawn(&mut crictl(stack, arguments)?)
    }

    fn spawn(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, output })
    }

    /// Waits until the client is attached: the guest prints a line each second.
    pub(super) async fn is_attached(&mut self) -> Result<()> {
        let tick = self.until("VMLET-TICK");
        in_time(SOON, "an attached client", tick).await.map(drop)
    }

    /// Reads until the guest has printed a line with `text`; gives all that it has printed.
    pub(super) async fn until(&mut self, text: &str) -> Result<String> {
        let mut printed = String::new();
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let length = self.output.read_line(&mut line).await?;
            ensure!(length > 0, "the session ended after {printed:?}");
            printed.push_str(&line);
        }
        Ok(printed)
    }
}

/// A running `crictl port-forward`, which ends with the value.
pub(super) struct Forward(Child);

impl Forward {
    pub(super) fn start(stack: &Stack, sandbox: &str, ports: &[&str]) -> Result<Self> {
        let endpoint = stack.var("CONTAINER_RUNTIME_ENDPOINT")?;
        let child = Command::from(stack.command("crictl"))
            .args(["-r", endpoint, "-i", endpoint, "port-forward", sandbox])
            .args(ports)
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self(child))
    }
}

async fn a_session_ends_with_the_daemon(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let pod = PodOptions::named("cut", stack);
    let (sandbox, _) = cri.boot(&pod, &image).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    let mut forward = Forward::start(stack, &sandbox, &["18080:80"])?;
    stack.fetch("http://127.0.0.1:18080/", SOON).await?;
    stack.restart("vmlet")?;
    let ended = async { Ok(forward.0.wait().await?) };
    in_time(SOON, "the end of the session", ended).await?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let _forward = Forward::start(stack, &sandbox, &["18080:80"])?;
    stack.fetch("http://127.0.0.1:18080/", SOON).await?;
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await
}
