//! A stand-in for a virtual machine: a namespace with a NIC that is wired to a pod's tap.
//!
//! Invariant: the guest sees the pod through the tap's descriptor only, as QEMU would; frames cross
//! unchanged, headers included.
//! Failure: every wait has a deadline and panics with what it waited for.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netns::Namespace;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::JoinSet;

/// The guest's NIC.
pub(crate) const NIC: &str = "nic0";
const DEADLINE: Duration = Duration::from_secs(90);

/// What `udhcpc` runs: it keeps the variables and sets the NIC up with them.
const SCRIPT: &str = r#"#!/bin/sh
env > "$REPORT.part"
echo "event=$1" >> "$REPORT.part"
case "$1" in
bound|renew)
  ip addr replace "$ip/$mask" dev "$interface"
  if [ -n "$staticroutes" ]; then
    set -- $staticroutes
    while [ $# -ge 2 ]; do
      if [ "$2" = 0.0.0.0 ]; then ip route replace "$1" dev "$interface" scope link
      else ip route replace "$1" via "$2" dev "$interface" onlink; fi
      shift 2
    done
  elif [ -n "$router" ]; then ip route replace default via "$router" dev "$interface"; fi
  ;;
esac
mv "$REPORT.part" "$REPORT"
"#;

/// A temporary directory for namespaces; they go with it, also when a test fails.
#[derive(Debug)]
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    /// A fresh directory.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// What is mounted below the directory now.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let points = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .map(PathBuf::from);
        points
            .filter(|point| point.starts_with(self.path()))
            .collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for mount in self.mounts() {
            let _ = nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// A guest; its namespace is removed with the [`Scratch`] directory it is in.
#[derive(Debug)]
pub(crate) struct Guest {
    ns: Namespace,
    dir: PathBuf,
    _cable: JoinSet<()>,
}

impl Guest {
    /// Makes a namespace at `dir/name` whose NIC has `mac` and is wired to `tap`.
    pub(crate) async fn plug(dir: &Path, name: &str, tap: OwnedFd, mac: &str) -> Self {
        let ns = Namespace::create(dir, name).await.unwrap();
        let make = format!(
            "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip tuntap add {NIC} mode tap vnet_hdr \
             && ip link set {NIC} address {mac}"
        );
        run(&ns, &make).await;
        let nic = netns::open_tap(&ns, NIC).await.unwrap();
        run(&ns, &format!("ip link set lo up && ip link set {NIC} up")).await;
        let mut cable = JoinSet::new();
        cable.spawn(carry(nic.try_clone().unwrap(), tap.try_clone().unwrap()));
        cable.spawn(carry(tap, nic));
        Self {
            ns,
            dir: dir.to_owned(),
            _cable: cable,
        }
    }

    /// Requests a lease with `udhcpc` and returns the variables of its script.
    pub(crate) async fn lease(&self, arguments: &str) -> BTreeMap<String, String> {
        let script = self.dir.join("udhcpc.sh");
        let report = self.dir.join("lease");
        write_program(&self.ns, &script, SCRIPT).await;
        let _ = tokio::fs::remove_file(&report).await;
        run(
            &self.ns,
            &format!(
                "REPORT={report} busybox udhcpc -f -n -q -t 60 -T 1 -i {NIC} \
                 -s {script} -O staticroutes -O search -O mtu -O routes {arguments}",
                script = script.display(),
                report = report.display()
            ),
        )
        .await;
        let text = tokio::fs::read_to_string(&report).await.unwrap();
        let pair = |line: &str| {
            line.split_once('=')
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
        };
        text.lines().filter_map(pair).collect()
    }

    /// Where the guest is.
    #[allow(dead_code)] // for tests that bring sockets of their own
    pub(crate) fn namespace(&self) -> Namespace {
        self.ns.clone()
    }

    /// Runs a shell command in the guest, which must succeed, and returns its output.
    pub(crate) async fn run(&self, command: &str) -> String {
        run(&self.ns, command).await
    }

    /// A UDP socket in the guest that is bound to `address`.
    pub(crate) async fn udp(&self, address: &'static str) -> tokio::net::UdpSocket {
        let socket = self
            .ns
            .run(move || std::net::UdpSocket::bind(address))
            .await;
        let socket = socket.unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        tokio::net::UdpSocket::from_std(socket).unwrap()
    }
}

/// Writes by another process: were the file open for writing here while a parallel test forks, it
/// could not be executed until that child has let go of it.
pub(crate) async fn write_program(ns: &Namespace, path: &Path, text: &str) {
    let path = path.display();
    let write = format!("cat >{path} <<'THE END'\n{text}THE END\nchmod +x {path}");
    run(ns, &write).await;
}

/// Runs a shell command in `ns`; it must succeed. Returns its output.
pub(crate) async fn run(ns: &Namespace, command: &str) -> String {
    let command = command.to_owned();
    let runtime = tokio::runtime::Handle::current();
    let output = ns
        .run(move || {
            let _guard = runtime.enter();
            let mut shell = tokio::process::Command::new("sh");
            shell.args(["-c", &command]).kill_on_drop(true);
            (command, shell.stdin(std::process::Stdio::null()).output())
        })
        .await;
    let (command, output) = output.unwrap();
    let output = tokio::time::timeout(DEADLINE, output)
        .await
        .expect(&command)
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command}: {}\n{text}{words}",
        output.status
    );
    text
}

/// Pipes of tokio serve for any descriptor that can be polled. Their plain `read` takes a short
/// read for the last one, which is wrong for frames.
async fn carry(from: OwnedFd, to: OwnedFd) {
    let from = Receiver::from_file_unchecked(from.into()).unwrap();
    let to = Sender::from_file_unchecked(to.into()).unwrap();
    let mut frame = vec![0; 70_000];
    while from.readable().await.is_ok() && to.writable().await.is_ok() {
        match from.try_read(&mut frame) {
            // A NIC drops what does not fit or comes while it is down.
            Ok(length) => drop(to.try_write(&frame[..length])),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // The device no longer exists.
            Err(_) => return,
        }
    }
}
