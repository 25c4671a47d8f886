//! The wrapper as libvirt runs it, against a hand-off server of the test and a script in QEMU's
//! place.
//!
//! Invariant: each test has its own directory, socket and script; the server thread ends with its
//! one connection or at a deadline.
//! Failure: the script prints what it was given, so a wrong argument, variable or descriptor shows.

// Helpers of tests fail the test by panicking.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::JoinHandle;
use std::time::Duration;

use fdpass::Listener;
use serde_json::{Value, json};

const TOKEN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Prints its arguments, its variables and its descriptors. Not written by the test: a file that
/// was open for writing a moment ago may still be so in the fork of another test's thread, and
/// cannot be executed.
const EMULATOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/qemu.sh");

struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("handoff.sock")
    }

    fn wrapper(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmwrapper"));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("VMLET_EMULATOR", EMULATOR)
            .env("KEPT", "yes");
        command
    }

    fn start(&self) -> Command {
        let mut command = self.wrapper();
        command
            .env("VMLET_START_TOKEN", TOKEN)
            .env("VMLET_HANDOFF_SOCKET", self.socket())
            .env("VMLET_LAYERS", "/none/layers");
        command
    }

    /// Serves one connection: returns what was asked, answers with `reply` and `files`.
    fn serve(&self, reply: &Value, files: Vec<File>) -> JoinHandle<Value> {
        let listener = Listener::bind(&self.socket(), 0o600).unwrap();
        let reply = reply.to_string();
        std::thread::spawn(move || {
            let connection = listener.accept().unwrap();
            connection
                .set_deadline(Some(Duration::from_secs(10)))
                .unwrap();
            let request = connection.recv(4096).unwrap().unwrap();
            let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            connection.send(reply.as_bytes(), &fds).unwrap();
            serde_json::from_slice(&request.bytes).unwrap()
        })
    }

    fn file(&self, name: &str) -> File {
        File::create(self.path(name)).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn lines(output: &Output, kind: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|l| l.strip_prefix(kind))
        .map(|l| l.trim().to_owned())
        .collect()
}

/// Numbers of the script's descriptors that refer to `path`.
fn descriptors(output: &Output, path: &Path) -> Vec<String> {
    let wanted = path.to_string_lossy();
    let all = lines(output, "fd");
    let of_path = all
        .iter()
        .filter_map(|l| l.split_once(' ').filter(|(_, to)| *to == wanted));
    of_path.map(|(number, _)| number.to_owned()).collect()
}

/// The variables of others are passed on; ours, and our connections, are not.
fn has_nothing_of_ours(output: &Output) {
    let variables = lines(output, "env");
    assert!(variables.iter().any(|v| v == "KEPT=yes"), "{variables:?}");
    assert!(
        !variables.iter().any(|v| v.starts_with("VMLET_")),
        "{variables:?}"
    );
    let sockets = lines(output, "fd")
        .iter()
        .filter(|l| l.contains("socket:"))
        .count();
    assert_eq!(sockets, 0, "the connection is not passed on");
}

/// The only line on standard error, of a wrapper that failed.
fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(
        text.starts_with("vmwrapper: ") && text.ends_with('\n'),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn without_a_token_qemu_gets_exactly_what_was_given() {
    let scratch = Scratch::new();
    let output = scratch
        .wrapper()
        .args(["-S", "-no-user-config", "a b"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lines(&output, "arg"), ["-S", "-no-user-config", "a b"]);
}

#[test]
fn with_a_token_qemu_gets_every_nic_and_nothing_of_ours() {
    let scratch = Scratch::new();
    let reply = json!({"ok": {"nics": [
        {"mac": "0a:58:0a:01:00:05", "mtu": 1500},
        {"mac": "0A:58:0a:02:00:07", "mtu": 8950},
    ]}});
    let server = scratch.serve(&reply, vec![scratch.file("tap0"), scratch.file("tap1")]);
    let output = scratch.start().args(["-name", "vm"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        server.join().unwrap(),
        json!({"version": 1, "token": TOKEN})
    );

    let [first] = <[String; 1]>::try_from(descriptors(&output, &scratch.path("tap0"))).unwrap();
    let [second] = <[String; 1]>::try_from(descriptors(&output, &scratch.path("tap1"))).unwrap();
    assert_eq!(
        lines(&output, "arg"),
        [
            "-name",
            "vm",
            "-netdev",
            &format!("tap,id=vmlet0,fd={first},vhost=off"),
            "-device",
            "virtio-net-pci,netdev=vmlet0,id=vmlet-net0,mac=0a:58:0a:01:00:05,bus=pcie.0,addr=0x10",
            "-netdev",
            &format!("tap,id=vmlet1,fd={second},vhost=off"),
            "-device",
            "virtio-net-pci,netdev=vmlet1,id=vmlet-net1,mac=0a:58:0a:02:00:07,host_mtu=8950,bus=pcie.0,addr=0x11",
        ]
    );
    has_nothing_of_ours(&output);
}

#[test]
fn a_refusal_reaches_libvirt_on_one_line() {
    let scratch = Scratch::new();
    let reply = json!({"error": {"code": "not_found", "message": "no such\ntoken\u{1b}[0m"}});
    let server = scratch.serve(&reply, vec![]);
    let line = complaint(&scratch.start().output().unwrap());
    server.join().unwrap();
    assert!(
        line.contains("refused (not_found): no such token [0m"),
        "{line}"
    );
}

#[test]
fn an_answer_that_would_change_the_command_line_is_refused() {
    let scratch = Scratch::new();
    let reply = json!({"ok": {"nics": [{"mac": "0a:58:0a:01:00:05,id=x", "mtu": 1500}]}});
    let server = scratch.serve(&reply, vec![scratch.file("tap0")]);
    let line = complaint(&scratch.start().output().unwrap());
    server.join().unwrap();
    assert!(line.contains("MAC"), "{line}");
}

#[test]
fn descriptors_that_do_not_match_the_nics_are_refused() {
    let scratch = Scratch::new();
    let reply = json!({"ok": {"nics": [{"mac": "0a:58:0a:01:00:05", "mtu": 1500}]}});
    let server = scratch.serve(&reply, vec![scratch.file("a"), scratch.file("b")]);
    let line = complaint(&scratch.start().output().unwrap());
    server.join().unwrap();
    assert!(line.contains("1 NICs came with 2 descriptors"), "{line}");
}

#[test]
fn a_missing_server_socket_or_emulator_is_named() {
    let scratch = Scratch::new();
    let line = complaint(&scratch.start().output().unwrap());
    assert!(line.contains("handoff.sock"), "{line}");
    let line = complaint(
        &scratch
            .start()
            .env_remove("VMLET_HANDOFF_SOCKET")
            .output()
            .unwrap(),
    );
    assert!(line.contains("VMLET_HANDOFF_SOCKET"), "{line}");
    let line = complaint(
        &scratch
            .start()
            .env("VMLET_START_TOKEN", "")
            .output()
            .unwrap(),
    );
    assert!(line.contains("VMLET_START_TOKEN"), "{line}");
    let line = complaint(
        &scratch
            .wrapper()
            .env("VMLET_EMULATOR", "/none/qemu")
            .output()
            .unwrap(),
    );
    assert!(line.contains("/none/qemu"), "{line}");
}

/// Whether the kernel confines processes in all that the tests look at.
fn has_landlock() -> bool {
    use landlock::{AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
    let strict = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let rules = strict.handle_access(AccessFs::Execute);
    let rules = rules.and_then(|rules| rules.scope(Scope::Signal));
    rules.and_then(Ruleset::create).is_ok()
}

#[test]
fn a_qemu_that_was_taken_over_reaches_its_own_files_and_nothing_else() {
    const ALL: [&str; 14] = [
        "own-file",
        "layer",
        "new-layer",
        "other-file",
        "overwrite",
        "create",
        "directory",
        "processes",
        "tcp",
        "signal",
        "link",
        "hard-link",
        "rename",
        "pipe",
    ];
    /// How many of them Landlock alone prevents.
    const BY_LANDLOCK: usize = 10;
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("other")).unwrap();
    std::fs::create_dir(scratch.path("own")).unwrap();
    let own = scratch.path("own/disk");
    let other = scratch.path("other/disk");
    let layers = scratch.path("layers");
    std::fs::create_dir(&layers).unwrap();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let attack = |mut command: Command| {
        for made in ["own/link", "own/hard", "own/moved", "own/pipe"] {
            let _ = std::fs::remove_file(scratch.path(made));
        }
        // Its command line names no layer.
        for file in [&own, &other, &layers.join("1.qcow2")] {
            std::fs::write(file, "content").unwrap();
        }
        let output = command
            .env(
                "VMLET_EMULATOR",
                concat!(env!("CARGO_MANIFEST_DIR"), "/tests/escape.sh"),
            )
            .env("VMLET_LAYERS", &layers)
            .env("LAYERS", &layers)
            .env("OWN", &own)
            .env("OTHER", &other)
            .env("PORT", server.local_addr().unwrap().port().to_string())
            .arg("-drive")
            .arg(format!("file={},if=virtio", own.display()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        lines(&output, "")
    };
    // Without a token it is libvirt that runs QEMU, to learn what it can do.
    let reached = ALL.map(|name| format!("{name} reached"));
    assert_eq!(attack(scratch.wrapper()), reached);
    let start = |landlock: &str| {
        for left in [scratch.path("other/disk.new"), layers.join("2.qcow2")] {
            let _ = std::fs::remove_file(left);
        }
        let answer = scratch.serve(&json!({"ok": {"nics": []}}), vec![]);
        let mut command = scratch.start();
        command.env("VMLET_LANDLOCK", landlock);
        let reached = attack(command);
        answer.join().unwrap();
        reached
    };
    // What no kernel without Landlock, and no setting, lets it do.
    let mut expected = reached;
    for (line, name) in expected.iter_mut().zip(ALL).skip(BY_LANDLOCK) {
        *line = format!("{name} refused");
    }
    assert_eq!(start("off"), expected);
    assert_eq!(without_landlock(|| start("on")), expected);
    if !has_landlock() {
        eprintln!("not tested: this kernel has no Landlock of Linux 6.12");
        return;
    }
    let mut expected = ALL.map(|name| format!("{name} refused"));
    expected[0] = "own-file reached".to_owned();
    expected[1] = "layer reached".to_owned();
    for landlock in ["on", "require"] {
        assert_eq!(start(landlock), expected);
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "content");
    }
}

#[test]
fn where_landlock_is_required_qemu_does_not_start_without_it() {
    let scratch = Scratch::new();
    let server = scratch.serve(&json!({"ok": {"nics": []}}), vec![]);
    let mut command = scratch.start();
    command.env("VMLET_LANDLOCK", "require");
    let line = complaint(&without_landlock(|| command.output().unwrap()));
    server.join().unwrap();
    assert!(
        line.contains("the kernel of this node has no Landlock"),
        "{line}"
    );
}

#[test]
fn a_file_does_not_grow_beyond_its_bound_and_qemu_survives_the_attempt() {
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    std::fs::write(&disk, "content").unwrap();
    // Standard output is a file of the console, as for QEMU.
    let script = format!(
        "truncate -s 2M {0}; echo at $?; truncate -s 512K {0}; echo below $?",
        disk.display()
    );
    let run = |bound: Option<&str>| {
        let server = scratch.serve(&json!({"ok": {"nics": []}}), vec![]);
        let mut command = scratch.start();
        command
            .env("VMLET_EMULATOR", "/bin/sh")
            .env("VMLET_LANDLOCK", "off")
            .args(["-c", &script]);
        bound.map(|bound| command.env("VMLET_FILE_SIZE", bound));
        let output = command.output().unwrap();
        server.join().unwrap();
        output
    };
    assert_eq!(lines(&run(None), ""), ["at 0", "below 0"]);
    assert_eq!(lines(&run(Some("1048576")), ""), ["at 1", "below 0"]);
    let line = complaint(&run(Some("much")));
    assert!(line.contains("VMLET_FILE_SIZE"), "{line}");
}

/// Does the work as on a kernel without Landlock: the filter holds for one thread, and the programs
/// that it starts.
fn without_landlock<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    use libseccomp::{ScmpAction, ScmpFilterContext, ScmpSyscall};
    let filtered = move || {
        let mut filter = ScmpFilterContext::new(ScmpAction::Allow).unwrap();
        let call = ScmpSyscall::from_name("landlock_create_ruleset").unwrap();
        let unknown = ScmpAction::Errno(nix::libc::ENOSYS);
        filter.add_rule(unknown, call).unwrap();
        filter.load().unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(filtered).join().unwrap())
}

#[test]
fn an_unknown_value_for_landlock_is_refused() {
    let scratch = Scratch::new();
    let answer = scratch.serve(&json!({"ok": {"nics": []}}), vec![]);
    let output = scratch
        .start()
        .env("VMLET_LANDLOCK", "no")
        .output()
        .unwrap();
    answer.join().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("VMLET_LANDLOCK is not set, or not as it should be"),
        "{error}"
    );
}

#[test]
fn disks_in_files_reach_qemu_as_descriptors_alone() {
    let scratch = Scratch::new();
    let socket = scratch.path("disks");
    let disk = scratch.file("volume-disk");
    let stand_in = scratch.path("disk-0");
    let listener = Listener::bind(&socket, 0o600).unwrap();
    let message = json!({ "disks": [{ "path": stand_in, "read_only": true }] }).to_string();
    let daemon = std::thread::spawn(move || {
        let connection = listener.accept().unwrap();
        connection
            .send(message.as_bytes(), &[disk.as_fd()])
            .unwrap();
    });
    let tapmanager = scratch.serve(&json!({"ok": {"nics": []}}), vec![]);
    let output = scratch
        .start()
        .env("VMLET_DISK_SOCKET", &socket)
        .args(["-blockdev", &json!({ "filename": stand_in }).to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    daemon.join().unwrap();
    tapmanager.join().unwrap();
    let [number] =
        <[String; 1]>::try_from(descriptors(&output, &scratch.path("volume-disk"))).unwrap();
    let arguments = lines(&output, "arg").join("\n");
    assert!(!arguments.contains("disk-0"), "{arguments}");
    assert!(arguments.contains(&format!("fd={number},")), "{arguments}");
    has_nothing_of_ours(&output);
}

#[test]
fn qemu_reaches_the_directories_that_it_serves_and_not_what_is_beside_them() {
    let scratch = Scratch::new();
    let folder = |name: &str| {
        std::fs::create_dir(scratch.path(name)).unwrap();
        std::fs::write(scratch.path(name).join("old"), "content").unwrap();
        File::open(scratch.path(name)).unwrap()
    };
    let data = folder("data");
    let fixed = folder("fixed");
    let socket = scratch.path("files");
    let listener = Listener::bind(&socket, 0o600).unwrap();
    let directory = |tag: &str, read_only| json!({ "tag": tag, "read_only": read_only });
    let message = json!({
        "disks": [],
        "directories": [directory("vmlet-0", false), directory("vmlet-1", true)],
    });
    let daemon = std::thread::spawn(move || {
        let connection = listener.accept().unwrap();
        let files = [data.as_fd(), fixed.as_fd()];
        connection
            .send(message.to_string().as_bytes(), &files)
            .unwrap();
    });
    let tapmanager = scratch.serve(&json!({"ok": {"nics": []}}), vec![]);
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve.sh");
    let output = scratch
        .start()
        .env("VMLET_DISK_SOCKET", &socket)
        .env("VMLET_EMULATOR", program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    daemon.join().unwrap();
    tapmanager.join().unwrap();
    let beside = if has_landlock() { "refused" } else { "reached" };
    let expected = |access: &str, change: &str| {
        [
            format!("{access} read reached"),
            format!("{access} write {change}"),
            format!("{access} beside {beside}"),
        ]
    };
    let change = if has_landlock() { "refused" } else { "reached" };
    let expected = [expected("off", "reached"), expected("on", change)].concat();
    assert_eq!(lines(&output, ""), expected);
}

/// As libvirt describes serial port 0.
const PORT: &str = "socket,id=charserial0,fd=987,server=on,wait=off";

#[test]
fn the_serial_port_is_at_the_files_of_the_daemon() {
    let scratch = Scratch::new();
    let input = scratch.path("raw.in");
    nix::unistd::mkfifo(&input, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let input = File::options().read(true).write(true).open(input).unwrap();
    let console = scratch.path("raw");
    std::fs::write(&console, "earlier\n").unwrap();
    let output = File::options().append(true).open(&console).unwrap();
    let socket = scratch.path("console");
    let listener = Listener::bind(&socket, 0o600).unwrap();
    let daemon = std::thread::spawn(move || {
        let files = [input.as_fd(), output.as_fd()];
        listener.accept().unwrap().send(b"console", &files).unwrap();
    });
    let tapmanager = scratch.serve(&json!({"ok": {"nics": []}}), vec![]);
    let mut output = scratch
        .start()
        .env("VMLET_CONSOLE_SOCKET", &socket)
        .args(["-chardev", PORT])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{output:?}"
    );
    daemon.join().unwrap();
    tapmanager.join().unwrap();
    output.stdout = std::fs::read(&console).unwrap();
    assert!(output.stdout.starts_with(b"earlier\n"), "appended");
    let arguments = lines(&output, "arg");
    assert_eq!(
        arguments[..2],
        ["-chardev", "stdio,id=charserial0,signal=off"]
    );
    assert_eq!(descriptors(&output, &scratch.path("raw.in")), ["0"]);
    assert_eq!(descriptors(&output, &console), ["1"]);
    has_nothing_of_ours(&output);
}

#[test]
fn without_the_daemon_the_serial_port_stays_where_libvirt_has_it() {
    let scratch = Scratch::new();
    let tapmanager = scratch.serve(&json!({"ok": {"nics": []}}), vec![]);
    let output = scratch
        .start()
        .env("VMLET_CONSOLE_SOCKET", scratch.path("console"))
        .args(["-chardev", PORT])
        .output()
        .unwrap();
    tapmanager.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lines(&output, "arg")[..2], ["-chardev", PORT]);
    let error = String::from_utf8(output.stderr).unwrap();
    let expected = "vmwrapper: failed to reach the daemon for the console: ";
    assert!(error.starts_with(expected), "{error}");
}
