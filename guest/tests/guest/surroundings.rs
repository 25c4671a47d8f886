//! What a command is put into: a view of the file system, kernel parameters, a cgroup.
//!
//! Invariant: as in the other tests; cgroups are below one that the test makes, in the hierarchy of
//! version 2 that the machine has mounted, or that the test mounts for its thread alone.
//! Failure: as in the other tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::Places;
use guestapi::from_guest::Kind;
use guestapi::request::Action;
use guestapi::{Close, Reason, Request, SetLimits, Setting, Start, View, Volume};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use crate::host::{Host, command, kept, shell};
use crate::{has_ended, is_alive};

fn setting(name: &str, value: &str) -> Setting {
    Setting {
        name: name.to_owned(),
        value: value.to_owned(),
    }
}

fn refusal(host: &mut Host, start: Start) -> (Reason, String) {
    host.send(start);
    let refused = host.refused();
    (refused.reason(), refused.message)
}

#[test]
fn a_view_is_seen_by_its_command_alone() {
    let place = tempfile::tempdir().unwrap();
    let files = place.path().join("sessions");
    let mut host = Host::connect_to(Places::below(&files, None).unwrap());
    for folder in ["masked", "read-only"] {
        fs::create_dir(place.path().join(folder)).unwrap();
        fs::write(place.path().join(folder).join("file"), "content").unwrap();
    }
    fs::write(place.path().join("secret"), "content").unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let script = "ls -A masked; cat secret; cat read-only/file; echo; \
                  touch read-only/x || echo refused; touch x && cat /etc/resolv.conf";
    let mut start = kept(shell(1, script), "a-view");
    start.directory = place.path().to_str().unwrap().to_owned();
    start.view = Some(View {
        masked: vec![path("masked"), path("secret"), path("missing")],
        read_only: vec![path("read-only"), path("missing")],
        resolver: "nameserver 192.0.2.1\n".to_owned(),
        volumes: Vec::new(),
    });
    if !geteuid().is_root() {
        let (reason, message) = refusal(&mut host, start);
        assert_eq!(reason, Reason::NoConfinement, "{message}");
        return host.disconnect();
    }
    let before = fs::read_to_string("/etc/resolv.conf").unwrap();
    let ended = host.run(start.clone());
    let output = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(output, "content\nrefused\nnameserver 192.0.2.1\n");
    assert_eq!(fs::read_to_string("/etc/resolv.conf").unwrap(), before);
    assert_eq!(fs::read_to_string(path("secret")).unwrap(), "content");
    assert!(!files.join("a-view").exists(), "files of an ended session");
    host.send(Close { session: 1 });
    // What is no path of a file.
    start.session = 2;
    start.view.as_mut().unwrap().masked = vec!["secret".to_owned()];
    let (reason, message) = refusal(&mut host, start);
    assert_eq!(reason, Reason::NoConfinement);
    assert!(message.contains("\"secret\" is not absolute"), "{message}");
    host.disconnect();
}

fn volume(name: &str, path: &Path, is_directory: bool, read_only: bool) -> Volume {
    Volume {
        name: name.to_owned(),
        path: path.to_str().unwrap().to_owned(),
        is_directory,
        read_only,
    }
}

/// A namespace of this thread, and of the agent that it starts, with a share that is mounted.
fn mount_share(share: &Path) {
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(NONE, "/", NONE, private, NONE).unwrap();
    fs::create_dir(share).unwrap();
    mount(Some("share"), share, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
    for name in ["a-0", "a-1"] {
        fs::create_dir(share.join(name)).unwrap();
        fs::write(share.join(name).join("file"), name).unwrap();
    }
    fs::write(share.join("a-2"), "a file").unwrap();
}

#[test]
fn a_command_finds_the_volumes_of_its_pod() {
    let place = tempfile::tempdir().unwrap();
    let share = place.path().join("share");
    let root = place.path().join("root");
    if geteuid().is_root() {
        mount_share(&share);
    }
    let sessions = place.path().join("sessions");
    let mut host = Host::connect_to(Places::below(&sessions, None).unwrap());
    let data = root.join("deep/data");
    let file = root.join("etc/file");
    let script = "pwd; cat file conf/file ../../etc/file; echo; echo new >made; \
                  touch conf/made || echo refused";
    let mut start = kept(shell(1, script), "volumes");
    start.directory = data.to_str().unwrap().to_owned();
    start.view = Some(View {
        volumes: vec![
            volume("a-0", &data, true, false),
            volume("a-2", &file, false, false),
            // Its place is in the volume before it.
            volume("a-1", &data.join("conf"), true, true),
        ],
        ..View::default()
    });
    if !geteuid().is_root() {
        let (reason, message) = refusal(&mut host, start);
        assert_eq!(reason, Reason::NoConfinement, "{message}");
        return host.disconnect();
    }
    let ended = host.run(start.clone());
    let output = String::from_utf8(ended.stdout).unwrap();
    let expected = format!("{}\na-0a-1a file\nrefused\n", data.display());
    assert_eq!(output, expected);
    assert_eq!(fs::read_to_string(share.join("a-0/made")).unwrap(), "new\n");
    // Only the places are left where other commands look.
    assert!(data.read_dir().unwrap().next().is_none());
    assert_eq!(fs::read_to_string(&file).unwrap(), "");
    host.send(Close { session: 1 });
    let mut missing = start.clone();
    missing.session = 5;
    missing.command = shell(5, "pwd").command;
    missing.directory = data.join("not/there").to_str().unwrap().to_owned();
    let ended = host.run(missing);
    let output = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(output, format!("{}\n", data.join("not/there").display()));
    assert!(share.join("a-0/not/there").is_dir(), "in the volume");
    host.send(Close { session: 5 });

    let mut refused = |session, name: &str, path: &str| {
        start.session = session;
        let volumes = vec![volume(name, Path::new(path), true, false)];
        let view = View {
            volumes,
            ..View::default()
        };
        start.view = Some(view);
        refusal(&mut host, start.clone())
    };
    for (session, name, path, word) in [
        (2, "..", "/data", "no name of a volume"),
        (3, "a-0/file", "/data", "no name of a volume"),
        (4, "a-0", "data", "not absolute"),
        (5, "a-0", "/", "not absolute"),
        (6, "a-0", "/a/../b", "not absolute"),
        (7, "missing", "/proc", "mount a volume of the pod: ENOENT"),
    ] {
        let (reason, message) = refused(session, name, path);
        assert_eq!(reason, Reason::NoConfinement, "{message}");
        assert!(message.contains(word), "{message}");
    }
    host.disconnect();
}

#[test]
fn a_guest_without_virtiofs_refuses_volumes() {
    let place = tempfile::tempdir().unwrap();
    let sessions = place.path().join("sessions");
    let mut host = Host::connect_to(Places::below(&sessions, None).unwrap());
    let mut start = kept(shell(1, "true"), "volumes");
    start.view = Some(View {
        volumes: vec![volume("a-0", Path::new("/data"), true, false)],
        ..View::default()
    });
    let (reason, message) = refusal(&mut host, start);
    assert_eq!(reason, Reason::NoConfinement);
    assert!(
        message.contains("mount the volumes of the pod"),
        "{message}"
    );
    host.disconnect();
}

#[test]
fn kernel_parameters_are_set_before_the_command_runs() {
    let mut host = Host::connect();
    let path = "/proc/sys/kernel/sem";
    let present = fs::read_to_string(path).unwrap();
    let with = |session, name: &str, value: &str| Start {
        sysctls: vec![setting(name, value)],
        ..command(session, &["true"])
    };
    for (session, name) in [(1, "kernel.sem"), (2, "kernel/sem")] {
        if geteuid().is_root() {
            assert_eq!(host.run(with(session, name, present.trim())).code, 0);
        }
    }
    assert_eq!(fs::read_to_string(path).unwrap(), present);
    let (reason, message) = refusal(&mut host, with(3, "kernel.no_such", "1"));
    assert_eq!(reason, Reason::NoConfinement);
    let expected = "set the kernel parameter kernel.no_such to \"1\": ";
    assert!(message.starts_with(expected), "{message}");
    for name in ["", "../x", "/etc/passwd", "kernel/../../../x"] {
        let (reason, message) = refusal(&mut host, with(3, name, "1"));
        assert_eq!(reason, Reason::NoConfinement);
        assert!(message.contains("no kernel parameter"), "{message}");
    }
    host.disconnect();
}

#[test]
fn limits_need_cgroups() {
    let mut host = Host::connect();
    let mut start = kept(command(1, &["true"]), "a");
    start.limits = vec![setting("memory.max", "1000000")];
    let (reason, message) = refusal(&mut host, start);
    assert_eq!(reason, Reason::NoConfinement);
    assert!(message.contains("no cgroup v2"), "{message}");
    let mut start = kept(command(1, &["true"]), "a");
    start.keep = "a/b".to_owned();
    let (_, message) = refusal(&mut host, start);
    assert!(message.contains("letters, digits"), "{message}");
    host.disconnect();
}

/// A cgroup of the test, which is removed with it.
struct Base {
    path: PathBuf,
    /// Unmounted after the cgroup is removed.
    _mount: Option<Mount>,
}

/// A mount of the hierarchy of version 2, which only this thread and its children see.
struct Mount(tempfile::TempDir);

impl Mount {
    fn make() -> Self {
        const NONE: Option<&str> = None;
        let place = tempfile::tempdir().unwrap();
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(NONE, "/", NONE, private, NONE).unwrap();
        let kind = Some("cgroup2");
        mount(kind, place.path(), kind, MsFlags::empty(), NONE).unwrap();
        Self(place)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        umount2(self.0.path(), MntFlags::MNT_DETACH).unwrap();
    }
}

impl Base {
    fn new(name: &str) -> Self {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().find(|line| line.contains(" cgroup2 "));
        let mounted = line.and_then(|line| line.split(' ').nth(1));
        let own = mounted.is_none().then(Mount::make);
        let top = match (&own, mounted) {
            (Some(own), _) => own.0.path(),
            (None, point) => Path::new(point.unwrap_or_default()),
        };
        let name = format!("vmlet-guest-test-{name}-{}", std::process::id());
        let base = Self {
            path: top.join(name),
            _mount: own,
        };
        base.places();
        base
    }

    fn places(&self) -> Places {
        Places::below(Path::new("/nonexistent"), Some(self.path.clone())).unwrap()
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        fs::remove_dir(&self.path).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn all_that_a_session_started_ends_with_it() {
    let base = Base::new("end");
    let mut host = Host::connect_to(base.places());
    // Its parents have ended, and it has a session of its own.
    let script = "setsid sh -c 'sleep 1000 & echo $!' </dev/null 2>/dev/null & wait; read line";
    let start = |session, name: &str| Start {
        input: true,
        ..kept(shell(session, script), name)
    };
    let orphan = |host: &mut Host| loop {
        if let Kind::Data(data) = host.next() {
            let pid = String::from_utf8(data.data.to_vec()).unwrap();
            return pid.trim().to_owned();
        }
    };
    host.send(start(1, "first"));
    host.started();
    let first = orphan(&mut host);
    let mut within = command(2, &["sleep", "1000"]);
    within.within = "first".to_owned();
    host.send(within);
    host.started();
    assert!(is_alive(&first));
    host.send(Request {
        number: 3,
        action: Some(Action::SetLimits(SetLimits {
            keep: "first".to_owned(),
            limits: vec![setting("nosuch.max", "1")],
        })),
    });
    let Kind::Answer(answer) = host.next() else {
        panic!("no answer");
    };
    assert!(answer.error.contains("nosuch.max"), "{}", answer.error);
    host.send(guestapi::Data {
        session: 1,
        end: true,
        ..guestapi::Data::default()
    });
    let ended = host.ends(&[1, 2]);
    assert_eq!(ended[&2].code, 137, "what runs within it ends, too");
    assert!(has_ended(&first), "the orphan runs on");
    assert!(!base.path.join("first").exists());
    // Within a session that has ended nothing runs.
    let mut late = command(4, &["true"]);
    late.within = "first".to_owned();
    let (reason, message) = refusal(&mut host, late);
    assert_eq!(reason, Reason::NoSession, "{message}");
    // A session that the host closes.
    host.send(start(5, "second"));
    host.started();
    let second = orphan(&mut host);
    host.send(Close { session: 5 });
    host.send(kept(command(6, &["true"]), "third"));
    host.end(6);
    host.disconnect();
    assert!(has_ended(&second), "by the end of the session");
}

#[test]
#[ignore = "needs root"]
fn what_an_earlier_agent_left_is_killed() {
    let base = Base::new("left");
    let group = base.path.join("left");
    fs::create_dir(&group).unwrap();
    let mut left = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(group.join("cgroup.procs"), left.id().to_string()).unwrap();
    base.places();
    assert!(!left.wait().unwrap().success());
    assert!(!group.exists());
}
