//! What an escaped QEMU reaches: a program with the credentials of one machine's emulator tries the
//! files, sockets and processes of its neighbour and of the node.
//!
//! Invariant: each attempt is made on the machine's own things first, where it must succeed, so
//! that a refusal is one of access and not of a wrong path.
//! Failure: the attempts whose outcome differs.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, program};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Tries one thing with the first argument; the exit code is 0 if it worked.
const READ: &str =
    r#"open(my $f, "<", $ARGV[0]) or exit 1; exit(defined(sysread($f, my $b, 1)) ? 0 : 1)"#;
const WRITE: &str = r#"open(my $f, "+<", $ARGV[0]) or exit 1"#;
const LIST: &str = r#"opendir(my $d, $ARGV[0]) or exit 1"#;
const CONNECT: &str = r#"use Socket;
    for my $kind (SOCK_STREAM, SOCK_SEQPACKET) {
        socket(my $s, AF_UNIX, $kind, 0) or exit 2;
        exit 0 if connect($s, pack_sockaddr_un($ARGV[0]));
    }
    exit 1"#;
/// Puts a link to the second argument in the place of the first.
const LEAD: &str = r#"unlink($ARGV[0]); exit(symlink($ARGV[1], $ARGV[0]) ? 0 : 1)"#;
const SIGNAL: &str = r#"exit(kill(0, $ARGV[0]) ? 0 : 1)"#;

/// Credentials of `vmlet-agent`, as `setpriv` takes them.
const AGENT: [&str; 2] = ["--reuid=1899999999", "--regid=1899999999"];

const END: Duration = Duration::from_secs(60);

/// A machine and what belongs to it.
struct Machine {
    sandbox: String,
    container: String,
    pid: String,
    uid: u32,
    gid: u32,
    /// Credentials as `setpriv` takes them.
    credentials: Vec<String>,
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    sockets: Vec<PathBuf>,
    /// What not even the machine's own emulator can open: descriptors of it are passed on.
    passed_on: Vec<PathBuf>,
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_escaped_emulator_reaches_nothing_of_its_neighbour_or_of_the_node() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let one = boot(&stack, &cri, "one", &image).await?;
    let two = boot(&stack, &cri, "two", &image).await?;
    ensure!(one.uid != two.uid, "both run as user {}", one.uid);
    ensure!(
        one.uid >= 1_900_000_000,
        "user {} is not of the range",
        one.uid
    );
    confined(&one)?;
    modes(&stack, &one)?;

    let mut wrong = Vec::new();
    for (owner, works) in [(&one, true), (&two, false)] {
        for (what, program, path) in owner.attempts() {
            if one.tries(program, &path)? != works {
                let path = path.display();
                wrong.push(format!("{what} {path}: expected {works}"));
            }
        }
    }
    let passed_on = [&one, &two]
        .into_iter()
        .flat_map(|machine| &machine.passed_on);
    let passed_on = passed_on.flat_map(|path| {
        [
            ("read", READ, path.clone()),
            ("connect to", CONNECT, path.clone()),
        ]
    });
    for (what, program, path) in of_node(&stack).into_iter().chain(passed_on) {
        ensure!(path.exists(), "{} does not exist", path.display());
        if one.tries(program, &path)? {
            wrong.push(format!("{what} {} works", path.display()));
        }
    }
    // The agent's user reaches the one socket that is for it.
    let agent = [
        AGENT.map(String::from).to_vec(),
        vec!["--clear-groups".to_owned()],
    ]
    .concat();
    for (what, program, path) in of_node(&stack).into_iter().chain(one.attempts()) {
        let is_for_agent = path.ends_with("run/node/node.sock");
        if tries(&agent, program, &path)? != is_for_agent {
            wrong.push(format!(
                "agent, {what} {}: expected {is_for_agent}",
                path.display()
            ));
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    starts_no_program(&stack, &cri, &two).await?;

    for machine in [one, two] {
        cri.remove_pod(&machine.sandbox).await?;
    }
    stack.await_clean().await?;
    stack.down()
}

/// It makes the links as a process that no filter of system calls and no Landlock confines.
#[tokio::test]
#[ignore = "needs root"]
async fn a_link_in_the_place_of_a_socket_leads_root_nowhere() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let machine = boot(&stack, &cri, "one", &image).await?;
    let target = stack.dir().join("root.sock");
    let of_root = UnixListener::bind(&target)?;
    of_root.set_nonblocking(true)?;
    for socket in &machine.sockets {
        let mut command = Command::new("setpriv");
        command
            .args(&machine.credentials)
            .args(["perl", "-e", LEAD])
            .args([socket, &target]);
        let led = program::output(&mut command)?;
        ensure!(led.status.success(), "{} stays", socket.display());
    }
    // A daemon that has no connection yet.
    stack.kill("vmlet", Signal::SIGKILL).await?;
    stack.restart("vmlet")?;
    let arguments = [
        "exec",
        "--sync",
        "--timeout",
        "5",
        &machine.container,
        "true",
    ];
    let ran = stack.crictl(&arguments);
    ensure!(ran.is_err(), "a command ran without an agent");
    // libvirtd connects to the port of its agent by name when the guest opens it. No QEMU can lead it
    // elsewhere: its filter of system calls refuses links (`vmwrapper`).
    while let Ok((came, _)) = of_root.accept() {
        came.set_nonblocking(true)?;
        let peer = tokio::net::UnixStream::from_std(came)?.peer_cred()?;
        let pid = peer.pid().context("no process")?;
        let program = std::fs::read_to_string(format!("/proc/{pid}/comm"))?;
        ensure!(
            program.trim() == "libvirtd",
            "{} has followed the link as root",
            program.trim()
        );
    }
    std::fs::remove_file(&target)?;
    // The connection of before ended with the daemon.
    let cri = stack.cri().await?;
    cri.remove_pod(&machine.sandbox).await?;
    stack.await_clean().await?;
    stack.down()
}

/// Boots a machine with a seed image, and finds what belongs to it.
async fn boot(stack: &Stack, cri: &Cri, name: &str, image: &str) -> Result<Machine> {
    let mut pod = PodOptions::named(name, stack);
    let user_data = ("vmlet.dev/cloud-init-user-data", "runcmd: [[\"true\"]]");
    pod.annotations
        .insert(user_data.0.to_owned(), user_data.1.to_owned());
    let (sandbox, container) = cri.boot(&pod, image).await?;
    let inspected: Value = serde_json::from_str(&stack.crictl(&["inspect", &container])?)?;
    let pid = inspected["info"]["pid"]
        .as_i64()
        .context("no pid")?
        .to_string();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let numbers = |key: &str| -> Result<Vec<u32>> {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let fields = line
            .with_context(|| format!("no {key}"))?
            .split_whitespace();
        fields.map(|field| Ok(field.parse()?)).collect()
    };
    let uid = numbers("Uid:")?[1];
    let gid = numbers("Gid:")?[1];
    let groups = numbers("Groups:")?;
    let groups: Vec<_> = groups.iter().map(ToString::to_string).collect();
    let groups = if groups.is_empty() {
        "--clear-groups".to_owned()
    } else {
        format!("--groups={}", groups.join(","))
    };
    let state = stack.dir().join("state");
    let short = |id: &str| id[..20].to_owned();
    let console = state.join("console");
    let libvirt = only(
        &stack.dir().join("libvirt/lib/qemu"),
        &short(&container)[..12],
    )?;
    Ok(Machine {
        pid,
        uid,
        gid,
        credentials: vec![
            format!("--reuid={uid}"),
            format!("--regid={gid}"),
            groups,
            "--bounding-set=-all".to_owned(),
            "--inh-caps=-all".to_owned(),
        ],
        files: vec![
            state.join("pods").join(short(&sandbox)).join("root.qcow2"),
            state
                .join("seeds")
                .join(format!("{}.iso", short(&container))),
            libvirt.join("master-key.aes"),
        ],
        sockets: ["agent", "guest"]
            .map(|name| console.join(short(&container)).join(name))
            .into_iter()
            .collect(),
        passed_on: ["raw", "raw.in", "raw.sock"]
            .map(|end| console.join(format!("{}.{end}", short(&container))))
            .into_iter()
            .chain([libvirt.join("monitor.sock")])
            .collect(),
        directories: vec![console.join(short(&container)), libvirt],
        sandbox,
        container,
    })
}

/// The only entry of a directory whose name contains `part`.
fn only(directory: &Path, part: &str) -> Result<PathBuf> {
    let entries = std::fs::read_dir(directory)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut found = entries.iter().map(std::fs::DirEntry::path);
    found
        .find(|path| path.to_string_lossy().contains(part))
        .with_context(|| format!("nothing named {part} in {}", directory.display()))
}

impl Machine {
    /// Each way to reach what belongs to this machine.
    fn attempts(&self) -> Vec<(&'static str, &'static str, PathBuf)> {
        let proc = |name: &str| PathBuf::from(format!("/proc/{}/{name}", self.pid));
        let reads = self.files.iter().map(|path| ("read", READ, path.clone()));
        let lists = self
            .directories
            .iter()
            .map(|path| ("list", LIST, path.clone()));
        let sockets = self
            .sockets
            .iter()
            .map(|path| ("connect to", CONNECT, path.clone()));
        reads
            .chain([("write", WRITE, self.files[0].clone())])
            .chain(lists)
            .chain(sockets)
            .chain(["environ", "maps"].map(|name| ("read", READ, proc(name))))
            .chain([
                ("write", WRITE, proc("mem")),
                ("signal", SIGNAL, PathBuf::from(&self.pid)),
            ])
            .collect()
    }

    /// Whether a program with the credentials of this machine's emulator manages something.
    fn tries(&self, program: &str, path: &Path) -> Result<bool> {
        tries(&self.credentials, program, path)
    }
}

/// Whether a program with these credentials manages something.
fn tries(credentials: &[String], script: &str, path: &Path) -> Result<bool> {
    let mut command = Command::new("setpriv");
    command
        .args(credentials)
        .args(["perl", "-e", script])
        .arg(path);
    let output = program::output(&mut command)?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(words.is_empty(), "{script}: {words}");
    Ok(output.status.success())
}

/// The sockets and secrets of the node's programs.
fn of_node(stack: &Stack) -> Vec<(&'static str, &'static str, PathBuf)> {
    let in_stack = |name: &str| stack.dir().join(name);
    let sockets = [
        "run/vmlet.sock",
        "run/node/node.sock",
        "run/tapmanager.sock",
        "libvirt/sock/libvirt-sock",
        "libvirt/sock/libvirt-sock-ro",
    ];
    let connect = sockets.map(|name| ("connect to", CONNECT, in_stack(name)));
    let read = ["state/vmlet.db", "state/lock"].map(|name| ("read", READ, in_stack(name)));
    let list = [
        "state",
        "state/images/data",
        "state/pods",
        "state/console",
        "state/network",
    ];
    let list = list.map(|name| ("list", LIST, in_stack(name)));
    connect.into_iter().chain(read).chain(list).collect()
}

/// QEMU's own filter of system calls ends an emulator that starts a program. This is the last attempt with the machine.
async fn starts_no_program(stack: &Stack, cri: &Cri, machine: &Machine) -> Result<()> {
    let domain = format!("vmlet-{}", &machine.container[..20]);
    let command = [
        "qemu-monitor-command",
        "--hmp",
        &domain,
        "migrate -d exec:true",
    ];
    // Its end may come before the answer.
    let answer = stack.virsh(&command);
    let ended = cri.await_exit(&machine.container, END).await;
    let ended = ended.with_context(|| format!("it lives: {answer:?}"))?;
    ensure!(ended.exit_code == 137, "{ended:?}");
    Ok(())
}

/// The confinement that the kernel reports of the emulator.
fn confined(machine: &Machine) -> Result<()> {
    let read = |name: &str| std::fs::read(format!("/proc/{}/{name}", machine.pid));
    let line = String::from_utf8_lossy(&read("cmdline")?).replace('\0', " ");
    ensure!(line.contains("-sandbox on"), "no seccomp sandbox: {line}");
    let status = String::from_utf8(read("status")?)?;
    for wanted in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        ensure!(status.contains(wanted), "not {wanted:?} in {status}");
    }
    let environment = read("environ")?;
    let environment = String::from_utf8_lossy(&environment);
    ensure!(
        !environment.contains("VMLET_"),
        "variables of ours: {environment}"
    );
    // The kernel shows the interfaces of the process's network namespace.
    let links = String::from_utf8(read("net/dev")?)?;
    let links: Vec<_> = links
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(':'))
        .collect();
    ensure!(
        links.len() == 1 && links[0].0.trim() == "lo",
        "links: {links:?}"
    );
    Ok(())
}

/// Who may read the files on disk.
fn modes(stack: &Stack, machine: &Machine) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    for file in &machine.files {
        let found = std::fs::metadata(file)?;
        let mode = found.mode() & 0o777;
        ensure!(mode & 0o077 == 0, "{} has mode {mode:o}", file.display());
    }
    for entry in std::fs::read_dir(stack.dir().join("state/images/data"))? {
        let found = entry?.metadata()?;
        let mode = found.mode() & 0o777;
        let group = found.gid();
        ensure!(
            (mode, group) == (0o640, machine.gid),
            "image: {mode:o}, group {group}"
        );
    }
    Ok(())
}
