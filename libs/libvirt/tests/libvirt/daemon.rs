//! The connection against a real libvirtd with real QEMU, each test with its own.
//!
//! Invariant: guests have no disk; they sit in the firmware. Nothing runs when a test has ended.
//! Failure: the deadline of [`next`], with libvirtd's log at hand in the scratch directory.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libvirt::harness::Libvirtd;
use libvirt::{End, Error, Event, Hypervisor, Libvirt, Settings, Shutdown, State};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use uuid::Uuid;

/// The machine here may reap a dead QEMU only every two seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// SeaBIOS resets a machine that is reset again, a tenth of a second later.
const FIRMWARE: Duration = Duration::from_millis(700);

fn xml(id: Uuid, name: &str) -> String {
    xml_with(id, name, "/usr/bin/qemu-system-x86_64")
}

fn xml_with(id: Uuid, name: &str, emulator: &str) -> String {
    format!(
        r#"<domain type="qemu"><name>{name}</name><uuid>{id}</uuid>
  <metadata><vmlet:vm xmlns:vmlet="https://vmlet.dev/domain/1" container="of-{name}"/></metadata>
  <memory unit="MiB">32</memory><vcpu>1</vcpu>
  <os><type arch="x86_64" machine="q35">hvm</type></os>
  <features><acpi/></features>
  <on_poweroff>destroy</on_poweroff><on_crash>destroy</on_crash>
  <devices><emulator>{emulator}</emulator><memballoon model="none"/>
    <channel type="unix"><target type="virtio" name="org.qemu.guest_agent.0"/></channel>
  </devices></domain>"#
    )
}

/// The next event; that vCPUs begin to run comes with each start, before or after it.
async fn next(events: &mut Receiver<Event>) -> Event {
    loop {
        let event = tokio::time::timeout(TIMEOUT, events.recv())
            .await
            .expect("an event in time")
            .expect("an open channel");
        if !matches!(event, Event::Power(_)) {
            return event;
        }
    }
}

async fn running(hv: &Libvirt, name: &str) -> Uuid {
    let id = Uuid::new_v4();
    let mut events = hv.events();
    hv.define(xml(id, name)).await.unwrap();
    hv.start(id).await.unwrap();
    // It comes by another connection than the answer, and so perhaps later.
    while next(&mut events).await != Event::Started(id) {}
    id
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_starts_is_seen_and_is_destroyed() {
    let libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let mut events = hv.events();
    let versions = hv.versions().await.unwrap();
    assert!(
        versions.libvirt.contains('.') && versions.qemu.contains('.'),
        "{versions:?}"
    );

    let id = running(&hv, "one").await;
    assert_eq!(next(&mut events).await, Event::Started(id));
    assert_eq!(libvirtd.emulators().len(), 1);
    assert_eq!(hv.list().await.unwrap()[0].container, "of-one");
    let stats = hv.stats().await.unwrap();
    assert_eq!(stats.len(), 1);
    assert_eq!(stats[0].domain, id);
    assert!(
        stats[0].cpu_nanoseconds.is_some_and(|used| used > 0),
        "{stats:?}"
    );
    hv.pin(id, vec![0]).await.unwrap();
    let status = format!("/proc/{}/status", libvirtd.emulators()[0]);
    let status = std::fs::read_to_string(status).unwrap();
    assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    assert!(matches!(hv.start(id).await, Err(Error::Refused { .. })));
    assert!(matches!(hv.undefine(id).await, Err(Error::Refused { .. })));
    // The firmware ignores the power button, so the guest stays.
    hv.shutdown(id, Shutdown::Acpi).await.unwrap();
    assert_eq!(hv.state(id).await.unwrap(), Some(State::Active));
    hv.reset(id).await.unwrap();
    assert_eq!(next(&mut events).await, Event::Reset(id));
    // SeaBIOS resets the machine again, twice: these belong to the first.
    let more = tokio::time::timeout(FIRMWARE, next(&mut events)).await;
    assert!(more.is_err(), "{more:?}");

    hv.destroy(id).await.unwrap();
    assert_eq!(next(&mut events).await, Event::Stopped(id, End::Destroyed));
    assert_eq!(
        hv.state(id).await.unwrap(),
        Some(State::Inactive(End::Destroyed))
    );
    for how in [Shutdown::Acpi, Shutdown::Agent] {
        hv.shutdown(id, how).await.unwrap();
    }
    hv.undefine(id).await.unwrap();
    assert_eq!(hv.state(id).await.unwrap(), None);
    assert!(libvirtd.emulators().is_empty());
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_without_an_agent_is_not_waited_for() {
    let libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let id = running(&hv, "mute").await;
    let ping = json!({"execute": "guest-ping"});
    // A wait for an agent ends in another error.
    let answer = hv.agent(id, ping.clone(), TIMEOUT).await;
    assert!(matches!(answer, Err(Error::NoAgent { .. })), "{answer:?}");
    let answer = hv.shutdown(id, Shutdown::Agent).await;
    assert!(matches!(answer, Err(Error::NoAgent { .. })), "{answer:?}");
    hv.destroy(id).await.unwrap();
    let answer = hv.agent(id, ping, TIMEOUT).await;
    assert!(matches!(answer, Err(Error::NoAgent { .. })), "{answer:?}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_emulator_that_is_killed_counts_as_crashed() {
    let libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let id = running(&hv, "victim").await;
    let mut events = hv.events();
    kill(Pid::from_raw(libvirtd.emulators()[0]), Signal::SIGKILL).unwrap();
    assert_eq!(next(&mut events).await, Event::Stopped(id, End::Crashed));
    assert_eq!(
        hv.state(id).await.unwrap(),
        Some(State::Inactive(End::Crashed))
    );
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_outlives_libvirtd_and_its_events_come_again() {
    let mut libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let id = running(&hv, "survivor").await;
    let mut events = hv.events();

    libvirtd.kill();
    assert_eq!(next(&mut events).await, Event::Disconnected);
    assert!(!hv.is_connected());
    let begun = Instant::now();
    assert!(hv.state(id).await.unwrap_err().is_unavailable());
    assert!(hv.start(id).await.unwrap_err().is_unavailable());
    assert!(begun.elapsed() < Settings::default().call_deadline);

    libvirtd.launch().unwrap();
    assert_eq!(next(&mut events).await, Event::Connected);
    assert_eq!(hv.state(id).await.unwrap(), Some(State::Active));
    assert_eq!(hv.list().await.unwrap().len(), 1);

    let other = running(&hv, "newcomer").await;
    assert_eq!(next(&mut events).await, Event::Started(other));
    hv.destroy(other).await.unwrap();
    assert_eq!(
        next(&mut events).await,
        Event::Stopped(other, End::Destroyed)
    );
    // No event is guaranteed here: libvirt has none when it loses a guest that it is just picking
    // up again.
    hv.destroy(id).await.unwrap();
    assert!(matches!(
        hv.state(id).await.unwrap(),
        Some(State::Inactive(_))
    ));
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_call_to_a_frozen_libvirtd_ends_at_its_deadline() {
    let libvirtd = Libvirtd::start().unwrap();
    let settings = Settings {
        call_deadline: Duration::from_millis(300),
        parallel: 1,
        ..Settings::default()
    };
    let hv = libvirtd.connect(settings).await.unwrap();
    let mut events = hv.events();
    let pid = libvirtd.pid().unwrap();
    signal(pid, Signal::SIGSTOP);
    for _ in 0..3 {
        let answer = hv.list().await;
        // One list at a time: the next one waits for the one that hangs.
        let is_late = matches!(
            answer,
            Err(Error::Deadline { call: "list", .. } | Error::Busy { call: "list", .. })
        );
        assert!(is_late, "{answer:?}");
    }
    // Keep-alive gives it up after 15 to 20 s.
    assert_eq!(next(&mut events).await, Event::Disconnected);
    assert!(matches!(hv.list().await, Err(Error::Unavailable { .. })));
    signal(pid, Signal::SIGCONT);
    assert_eq!(next(&mut events).await, Event::Connected);
    // The permit of the first call returned when its connection was given up.
    let patient = async { while hv.list().await.is_err() {} };
    tokio::time::timeout(TIMEOUT, patient)
        .await
        .expect("calls work again");
}

/// Writes a program in the daemon's directory. Another process does: were the file open for writing
/// here while a parallel test forks, it could not be executed.
fn program(libvirtd: &Libvirtd, name: &str, text: &str) -> PathBuf {
    let path = libvirtd.dir().join(name);
    let write = "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", write, "sh"]).arg(&path).arg(text);
    assert!(shell.status().unwrap().success());
    path
}

/// An emulator that hangs for guests whose name begins with `hang`, when it opens a pipe without a
/// writer. Each of them leaves a file in the directory that comes second.
fn hanging_emulator(libvirtd: &Libvirtd) -> (String, PathBuf) {
    let in_scratch = |name| libvirtd.dir().join(name);
    let pipe = in_scratch("pipe");
    let hung = in_scratch("hung");
    nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o666)).unwrap();
    std::fs::set_permissions(&pipe, Permissions::from_mode(0o666)).unwrap();
    std::fs::create_dir(&hung).unwrap();
    std::fs::set_permissions(&hung, Permissions::from_mode(0o777)).unwrap();
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *guest=hang*) : >{}/$$; read -r nothing <{} ;; esac\n\
         exec /usr/bin/qemu-system-x86_64 \"$@\"\n",
        hung.display(),
        pipe.display()
    );
    let script = program(libvirtd, "emulator", &text);
    (script.to_str().unwrap().to_owned(), hung)
}

/// Waits until so many emulators hang.
async fn hang(hung: &Path, emulators: usize) {
    let hang = async {
        while std::fs::read_dir(hung).unwrap().count() < emulators {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, hang)
        .await
        .expect("hung emulators");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_kill_ends_a_restore_in_progress_and_keeps_the_memory() {
    let libvirtd = Libvirtd::start().unwrap();
    let settings = Settings {
        call_deadline: TIMEOUT,
        ..Settings::default()
    };
    let hv = libvirtd.connect(settings).await.unwrap();
    let id = running(&hv, "hang").await;
    let file = libvirtd.dir().join("memory");
    hv.save(id, file.clone()).await.unwrap();
    let (emulator, hung) = hanging_emulator(&libvirtd);
    let caller = hv.clone();
    let memory = file.clone();
    let restore = tokio::spawn(async move {
        let xml = xml_with(id, "hang", &emulator);
        caller.restore(xml, memory, std::future::pending()).await
    });
    hang(&hung, 1).await;
    hv.destroy(id).await.unwrap();
    let ended = tokio::time::timeout(TIMEOUT, restore).await;
    let ended = ended.expect("the end of the restore").unwrap();
    assert!(matches!(ended, Err(Error::Refused { .. })), "{ended:?}");
    assert!(libvirt::is_saved_memory(&file));
    let restored = hv.restore(xml(id, "hang"), file, std::future::pending());
    restored.await.unwrap();
    assert_eq!(hv.state(id).await.unwrap(), Some(State::Active));
    hv.destroy(id).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn hanging_starts_do_not_block_kills_and_version_calls() {
    let libvirtd = Libvirtd::start().unwrap();
    let settings = Settings {
        call_deadline: TIMEOUT,
        start_deadline: 2 * TIMEOUT,
        ..Settings::default()
    };
    let hv = libvirtd.connect(settings).await.unwrap();
    let victim = running(&hv, "victim").await;
    let (emulator, hung) = hanging_emulator(&libvirtd);
    let mut starts = Vec::new();
    for n in 0..settings.parallel {
        let id = Uuid::new_v4();
        let name = format!("hang-{n}");
        hv.define(xml_with(id, &name, &emulator)).await.unwrap();
        let hv = hv.clone();
        starts.push(tokio::spawn(async move { hv.start(id).await }));
    }
    hang(&hung, settings.parallel).await;
    // A node with four slow starts is no broken node.
    let others = async {
        hv.versions().await.unwrap();
        hv.destroy(victim).await.unwrap();
        assert!(matches!(
            hv.state(victim).await.unwrap(),
            Some(State::Inactive(End::Destroyed))
        ));
    };
    // Another change waits for its turn.
    let late = hv.define(xml_with(Uuid::new_v4(), "late", &emulator));
    tokio::select! {
        biased;
        defined = late => panic!("ended before the others: {defined:?}"),
        () = others => {}
    }
    assert!(starts.iter().all(|start| !start.is_finished()));
    for start in starts {
        start.abort();
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_emulator_that_libvirt_cannot_use_is_refused_until_it_is_repaired() {
    let libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let path = program(
        &libvirtd,
        "emulator",
        "#!/bin/sh\necho broken >&2\nexit 1\n",
    );
    for _ in 0..2 {
        let refused = hv.check_emulator(path.clone()).await;
        let Err(Error::Refused { reason, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(reason.contains(path.to_str().unwrap()), "{reason}");
    }
    let works = "#!/bin/sh\nexec /usr/bin/qemu-system-x86_64 \"$@\"\n";
    program(&libvirtd, "emulator", works);
    hv.check_emulator(path).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn only_root_reaches_a_socket_of_libvirt() {
    let daemon = Libvirtd::start().unwrap();
    daemon.connect(Settings::default()).await.unwrap();
    for name in ["libvirt-sock", "libvirt-sock-ro"] {
        let socket = daemon.dir().join("sock").join(name);
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{name}");
    }
    let deployed = include_str!("../../../../deploy/image/libvirtd");
    for kind in ["ro", "rw"] {
        let line = format!("\nunix_sock_{kind}_perms = \"0700\"\n");
        assert!(deployed.contains(&line), "{deployed}");
    }
}
