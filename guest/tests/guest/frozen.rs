//! File systems that the agent freezes, on loop devices that a test makes.
//!
//! Invariant: the agent's table of mounts has those of the test alone. The file of a journaling file system says
//! whether it is mounted and was not frozen: then its journal has to be applied.
//! Failure: as in the other tests; a file system that stays frozen is thawed before it is unmounted.

use std::fs::{self, File};
use std::io::{Read as _, pipe};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use guest::Places;
use guestapi::from_guest::Kind;
use guestapi::request::Action;
use guestapi::{Answer, Freeze, LONGEST_FREEZE, Request, Thaw};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, gettid};
use tempfile::TempDir;

use crate::host::{Host, PATIENCE};

const MIB: u64 = 1 << 20;

/// The folder of a test, and what it mounts there.
struct Mounts {
    folder: TempDir,
    points: Vec<PathBuf>,
}

fn run(program: &str, arguments: &[&Path]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
}

impl Mounts {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_vmlet-guest"));
        std::os::unix::fs::symlink(program, folder.path().join("vmlet-guest")).unwrap();
        Self {
            folder,
            points: Vec::new(),
        }
    }

    /// A folder to mount something.
    fn point(&mut self, name: &str) -> PathBuf {
        let point = self.folder.path().join(name);
        fs::create_dir(&point).unwrap();
        self.points.push(point.clone());
        point
    }

    /// A new file system in a file.
    fn ext4(&mut self, file: &Path, size: u64, name: &str) -> PathBuf {
        File::create(file).unwrap().set_len(size).unwrap();
        run("mkfs.ext4", &[Path::new("-q"), file]);
        let point = self.point(name);
        let options = ["-o", "loop"].map(Path::new);
        run("mount", &[options[0], options[1], file, &point]);
        point
    }

    fn bind(&mut self, from: &Path, name: &str) {
        let point = self.point(name);
        run("mount", &[Path::new("--bind"), from, &point]);
    }

    /// The program that runs before and after a freeze.
    fn hook(&self, text: &str) {
        let folder = self.folder.path().join("qemu");
        fs::create_dir(&folder).unwrap();
        let path = folder.join("fsfreeze-hook");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// An agent that has all of them in its table.
    fn agent(&self) -> Host {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let folder = self.folder.path().to_str().unwrap();
        let lines: Vec<_> = table.lines().filter(|line| line.contains(folder)).collect();
        assert_eq!(lines.len(), self.points.len(), "{table}");
        fs::write(self.folder.path().join("mountinfo"), lines.join("\n")).unwrap();
        let sessions = self.folder.path().join("sessions");
        Host::connect_to(Places::below(&sessions, None).unwrap())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for point in self.points.iter().rev() {
            // Of most, nothing is frozen.
            let _ = Command::new("fsfreeze").arg("-u").arg(point).output();
            let _ = Command::new("umount").arg("-l").arg(point).output();
        }
    }
}

fn request(host: &mut Host, number: u64, action: Action) -> Answer {
    let action = Some(action);
    host.send(Request { number, action });
    match host.next() {
        Kind::Answer(answer) if answer.number == number => answer,
        other => panic!("{other:?}"),
    }
}

fn freeze(host: &mut Host, number: u64, seconds: u32) -> Answer {
    request(host, number, Action::Freeze(Freeze { seconds }))
}

fn thaw(host: &mut Host, number: u64) -> Answer {
    request(host, number, Action::Thaw(Thaw {}))
}

/// How many file systems an action was about; it was not refused.
fn count(answer: &Answer) -> u32 {
    assert_eq!(answer.error, "");
    answer.file_systems
}

/// Whether the journal of a file system in a file has to be applied when it is mounted.
fn needs_recovery(file: &Path) -> bool {
    let mut features = [0; 4];
    let superblock = 1024;
    let file = File::open(file).unwrap();
    file.read_exact_at(&mut features, superblock + 0x60)
        .unwrap();
    u32::from_le_bytes(features) & 4 != 0
}

/// Writes a file in a thread; the result comes when it is written.
fn write(point: &Path) -> (i32, Receiver<()>) {
    let file = point.join("written");
    let (begins, begun) = mpsc::channel();
    let (ends, ended) = mpsc::channel();
    std::thread::spawn(move || {
        begins.send(gettid().as_raw()).unwrap();
        fs::write(file, "x").unwrap();
        ends.send(()).unwrap();
    });
    (begun.recv().unwrap(), ended)
}

/// Waits until a thread of this process stands in the kernel.
fn await_stall(thread: i32) {
    let stat = format!("/proc/self/task/{thread}/stat");
    let begun = std::time::Instant::now();
    while !fs::read_to_string(&stat).unwrap().contains(") D ") {
        assert!(begun.elapsed() < PATIENCE, "the write does not wait");
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "needs root"]
fn a_file_system_is_clean_while_it_is_frozen_and_a_write_waits_for_the_thaw() {
    let mut mounts = Mounts::new();
    let file = mounts.folder.path().join("file");
    let point = mounts.ext4(&file, 8 * MIB, "mounted");
    let mut host = mounts.agent();
    assert!(needs_recovery(&file), "it is mounted");
    assert_eq!(count(&freeze(&mut host, 1, LONGEST_FREEZE)), 1);
    assert!(!needs_recovery(&file), "it is frozen");
    let (thread, written) = write(&point);
    await_stall(thread);
    let again = freeze(&mut host, 2, LONGEST_FREEZE);
    assert!(again.error.contains("already"), "{again:?}");
    assert!(mounts.folder.path().join("frozen").exists());
    assert!(written.try_recv().is_err());
    assert_eq!(count(&thaw(&mut host, 3)), 1);
    written.recv_timeout(PATIENCE).expect("it goes on");
    assert!(needs_recovery(&file));
    // Another one can follow, and the end of the connection is its end.
    assert_eq!(count(&freeze(&mut host, 4, LONGEST_FREEZE)), 1);
    host.disconnect();
    let (_, written) = write(&point);
    written.recv_timeout(PATIENCE).expect("it is thawed");
}

#[test]
#[ignore = "needs root"]
fn after_its_time_the_guest_thaws_by_itself() {
    let mut mounts = Mounts::new();
    let file = mounts.folder.path().join("file");
    let point = mounts.ext4(&file, 8 * MIB, "mounted");
    let mut host = mounts.agent();
    // On a machine that is busy a second is not enough to begin.
    let times = (1..).zip((0..6).map(|power| 1 << power));
    let mut answers = times.map(|(number, seconds)| freeze(&mut host, number, seconds));
    let frozen = answers.find(|answer| answer.error.is_empty()).unwrap();
    assert_eq!(count(&frozen), 1);
    let (_, written) = write(&point);
    written.recv_timeout(PATIENCE).expect("it is thawed");
    let thawed = thaw(&mut host, 100);
    assert_eq!(count(&thawed), 0, "nothing was frozen until now");
    host.disconnect();
}

/// Its own mount is not the last one: one of the file system below it came later.
#[test]
#[ignore = "needs root"]
fn a_file_system_in_a_file_of_another_one_is_frozen_before_it() {
    let mut mounts = Mounts::new();
    let lower = mounts.folder.path().join("file");
    let point = mounts.ext4(&lower, 64 * MIB, "lower");
    let upper = point.join("file");
    mounts.ext4(&upper, 8 * MIB, "upper");
    mounts.bind(&point, "bound");
    let mut host = mounts.agent();
    assert_eq!(count(&freeze(&mut host, 1, LONGEST_FREEZE)), 2);
    assert!(!needs_recovery(&lower) && !needs_recovery(&upper));
    assert_eq!(count(&thaw(&mut host, 2)), 2);
    host.disconnect();
}

#[test]
#[ignore = "needs root"]
fn a_file_system_that_another_program_has_frozen_is_refused_and_left_alone() {
    let mut mounts = Mounts::new();
    let file = mounts.folder.path().join("file");
    let point = mounts.ext4(&file, 8 * MIB, "mounted");
    let mut host = mounts.agent();
    run("fsfreeze", &[Path::new("-f"), &point]);
    let refused = freeze(&mut host, 1, LONGEST_FREEZE);
    assert!(refused.error.contains("another program"), "{refused:?}");
    assert!(!needs_recovery(&file), "it is still frozen");
    run("fsfreeze", &[Path::new("-u"), &point]);
    assert_eq!(count(&freeze(&mut host, 2, LONGEST_FREEZE)), 1);
    assert_eq!(count(&thaw(&mut host, 3)), 1);
    host.disconnect();
}

/// The program writes to what is frozen between its two runs.
#[test]
#[ignore = "needs root"]
fn a_program_of_the_guest_runs_before_the_freeze_and_after_the_thaw() {
    let mut mounts = Mounts::new();
    let file = mounts.folder.path().join("file");
    let point = mounts.ext4(&file, 8 * MIB, "mounted");
    let log = point.join("log");
    mounts.hook(&format!("echo \"$1\" >> {}", log.display()));
    let lines = || fs::read_to_string(&log).unwrap();
    let mut host = mounts.agent();
    assert_eq!(count(&freeze(&mut host, 1, LONGEST_FREEZE)), 1);
    assert!(!needs_recovery(&file), "it is frozen");
    assert_eq!(lines(), "freeze\n");
    assert_eq!(count(&thaw(&mut host, 2)), 1);
    // The next freeze begins when the programs have run.
    assert_eq!(count(&freeze(&mut host, 3, LONGEST_FREEZE)), 1);
    assert_eq!(lines(), "freeze\nthaw\nfreeze\n");
    assert_eq!(count(&thaw(&mut host, 4)), 1);
    host.disconnect();
}

#[test]
#[ignore = "needs root"]
fn nothing_is_frozen_without_a_watchdog() {
    let mut mounts = Mounts::new();
    let file = mounts.folder.path().join("file");
    mounts.ext4(&file, 8 * MIB, "mounted");
    let mut host = mounts.agent();
    let program = mounts.folder.path().join("vmlet-guest");
    fs::remove_file(&program).unwrap();
    let refused = freeze(&mut host, 1, LONGEST_FREEZE);
    assert!(refused.error.contains("watchdog"), "{refused:?}");
    std::os::unix::fs::symlink("/bin/false", &program).unwrap();
    let refused = freeze(&mut host, 2, LONGEST_FREEZE);
    assert!(refused.error.contains("watchdog"), "{refused:?}");
    assert!(needs_recovery(&file));
    host.disconnect();
}

/// A shell is the agent: its file is descriptor 9.
#[test]
#[ignore = "needs root"]
fn the_watchdog_of_an_agent_that_is_killed_thaws() {
    let mut mounts = Mounts::new();
    let file = mounts.folder.path().join("file");
    let point = mounts.ext4(&file, 8 * MIB, "mounted");
    let (input, alive) = pipe().unwrap();
    let script = "exec 9<\"$0\"; echo open >&2; read -r line";
    let mut agent = Command::new("sh");
    agent.arg("-c").arg(script).arg(&point);
    agent
        .stdin(Stdio::piped())
        .stdout(alive)
        .stderr(Stdio::piped());
    let mut running = agent.spawn().unwrap();
    // It has the only end of the pipe.
    drop(agent);
    running
        .stderr
        .take()
        .unwrap()
        .read_exact(&mut [0; 5])
        .unwrap();
    let mut watchdog = Command::new(env!("CARGO_BIN_EXE_vmlet-guest"));
    watchdog.arg("--watchdog").arg(running.id().to_string());
    watchdog
        .args(["3600", "9"])
        .stdin(input)
        .stdout(Stdio::piped());
    let mut watchdog = watchdog.spawn().unwrap();
    watchdog
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut [0])
        .unwrap();
    run("fsfreeze", &[Path::new("-f"), &point]);
    // As a service manager ends what is left of a service.
    let pid = Pid::from_raw(watchdog.id().cast_signed());
    kill(pid, Signal::SIGTERM).unwrap();
    assert!(!needs_recovery(&file), "it is frozen");
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(watchdog.wait().unwrap().success());
    let (_, written) = write(&point);
    written.recv_timeout(PATIENCE).expect("it is thawed");
}

#[test]
#[ignore = "needs root"]
fn an_agent_thaws_what_one_that_was_killed_with_its_watchdog_has_left() {
    let mut mounts = Mounts::new();
    let file = mounts.folder.path().join("file");
    let point = mounts.ext4(&file, 8 * MIB, "mounted");
    let record = mounts.folder.path().join("frozen");
    fs::write(&record, format!("{}\0", point.display())).unwrap();
    let log = mounts.folder.path().join("log");
    mounts.hook(&format!("echo \"$1\" >> {}", log.display()));
    run("fsfreeze", &[Path::new("-f"), &point]);
    let mut host = mounts.agent();
    let (_, written) = write(&point);
    written.recv_timeout(PATIENCE).expect("it is thawed");
    // It serves its port when it is through with that.
    assert_eq!(count(&thaw(&mut host, 1)), 0);
    assert!(!record.exists());
    assert_eq!(fs::read_to_string(&log).unwrap(), "thaw\n");
    host.disconnect();
}
