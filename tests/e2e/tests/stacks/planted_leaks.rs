//! `down` finds one planted leak of each kind, and the search on a node that runs those that it looks
//! for.
//!
//! Invariant: each is named, and then removed as if it were the stack's own.
//! Failure: the kinds that were not named, or what is still there.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::{Stack, program};
use nix::mount::{MsFlags, mount};
use rusqlite::Connection;

/// The least that libvirt defines; it is never started.
const DOMAIN: &str = "<domain type='qemu'><name>planted-domain</name><memory>1</memory>\
    <os><type arch='x86_64'>hvm</type></os></domain>";

const FILES: [&str; 11] = [
    "netns/planted-namespace",
    "state/pods/planted-pod",
    "state/console/planted-console",
    "state/seeds/planted-seed",
    "state/processes/planted-process",
    "state/devices/planted-device",
    "state/disks/planted-disk",
    "state/network/planted-record",
    "state/images/partial/planted-download.part",
    "cni/cache/results/planted-result",
    "cni/ipam/planted-network/10.99.99.99",
];

#[tokio::test]
#[ignore = "needs root"]
async fn a_planted_leak_of_each_kind_is_named_and_removed() -> Result<()> {
    let stack = Stack::up()?;
    stack.cri().await?.await_ready().await?;
    let dir = stack.dir().to_owned();
    let netns = stack.var("VMLET_NETNS")?.to_owned();

    let mut process = stack
        .command("sleep")
        .arg("600")
        .env("VMLET_STACK_DIR", &dir)
        .spawn()?;
    run(stack
        .command("ip")
        .args(["link", "add", "planted0", "type", "bridge"]))?;
    define(&stack, &dir)?;
    shape(&stack)?;
    let point = dir.join("planted-mount");
    fs::create_dir(&point)?;
    let none = None::<&str>;
    mount(Some("tmpfs"), &point, Some("tmpfs"), MsFlags::empty(), none)?;
    // It is removed with the stack, and not below its directory.
    let outside = dir.with_file_name("outside");
    let folder = outside.join("planted-bind");
    fs::create_dir_all(&folder)?;
    bind(&dir.join("state"), &folder)?;
    let namespace = outside.join("planted-netns");
    fs::write(&namespace, "")?;
    bind(&Path::new("/run/netns").join(&netns), &namespace)?;
    let cgroup = controller()?.join(&netns).join("planted-group");
    fs::create_dir_all(&cgroup)?;
    for file in FILES {
        let file = dir.join(file);
        fs::create_dir_all(file.parent().context("a folder")?)?;
        fs::write(file, "")?;
    }
    run(stack.command("nft").args(["add", "table", "inet", "vmlet"]))?;
    let database = Connection::open(dir.join("state/vmlet.db"))?;
    database.execute("INSERT INTO block_devices VALUES ('0-0', '{}')", [])?;
    found_while_it_runs(&stack)?;
    let mut log = fs::File::options()
        .append(true)
        .open(dir.join("log/vmlet.log"))?;
    writeln!(log, "thread 'planted' panicked at src/planted.rs:1:1:")?;

    let found = stack.down().err().context("down found nothing")?;
    let found = format!("{found:#}");
    for leak in [
        &format!("process {}", process.id()),
        "link planted0",
        "domain planted-domain",
        "qdisc ingress ffff: on node0",
        "filter u32 49152 for all on node0",
        "mount ",
        "planted-mount",
        &format!("mount {}", folder.display()),
        &format!("mount {}", namespace.display()),
        "cgroup ",
        "planted-namespace",
        "planted-pod",
        "planted-console",
        "planted-record",
        "download ",
        "planted-download.part",
        "planted-result",
        "planted-seed",
        "planted-process",
        "device ",
        "planted-device",
        "packet filter inet vmlet",
        "IPAM lease ",
        "10.99.99.99",
        "panic in vmlet.log: thread 'planted'",
    ] {
        ensure!(found.contains(leak), "{leak:?} is not named in {found}");
    }
    // It is this test's child, so it stays a zombie until now.
    let killed = process.wait()?.signal();
    ensure!(killed == Some(9), "the process ended with {killed:?}");
    let netns = Path::new("/run/netns").join(netns);
    for place in [&dir, &cgroup, &netns] {
        ensure!(!place.exists(), "{} is still there", place.display());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let outside = outside.to_str().context("a path in UTF-8")?;
    ensure!(!mounts.contains(outside), "still mounted: {mounts}");
    Ok(())
}

/// Traffic control on a link that outlives all pods.
fn shape(stack: &Stack) -> Result<()> {
    for arguments in [
        "qdisc add dev node0 ingress",
        "filter add dev node0 parent ffff: pref 49152 protocol all u32 match u32 0 0 flowid 1:1",
    ] {
        run(stack.command("tc").args(arguments.split(' ')))?;
    }
    Ok(())
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    let none = None::<&str>;
    mount(Some(from), to, none, MsFlags::MS_BIND, none)
        .with_context(|| format!("bind {} to {}", from.display(), to.display()))
}

/// The search of tests whose stacks go on. What it does not list belongs to no pod.
fn found_while_it_runs(stack: &Stack) -> Result<()> {
    let found = stack.leftovers()?;
    for file in FILES.into_iter().filter(|file| !file.contains("cni/")) {
        ensure!(
            found.iter().any(|leak| leak == file),
            "no {file} in {found:?}"
        );
    }
    for leak in [
        "cni result planted-result",
        "lease 10.99.99.99",
        "link planted0",
        "qdisc ingress of node0",
        "domain planted-domain",
        "1 rows of block_devices",
    ] {
        ensure!(
            found.iter().any(|one| one == leak),
            "no {leak} in {found:?}"
        );
    }
    // A folder that is away hides what was in it.
    for folder in ["state/seeds", "state/images/partial"] {
        let place = stack.dir().join(folder);
        let aside = stack.dir().join("aside");
        fs::rename(&place, &aside)?;
        let error = stack.leftovers().err().context("no error")?.to_string();
        ensure!(
            error.contains(&format!("{folder} does not exist")),
            "{error}"
        );
        fs::rename(&aside, &place)?;
    }
    Ok(())
}

fn define(stack: &Stack, dir: &Path) -> Result<()> {
    let file = dir.join("planted-domain.xml");
    fs::write(&file, DOMAIN)?;
    let socket = dir.join("libvirt/sock/libvirt-sock");
    let uri = format!("qemu+unix:///system?socket={}", socket.display());
    run(stack
        .command("virsh")
        .args(["-c", &uri, "define"])
        .arg(file))
}

/// The top of a hierarchy of control groups: of processes in version 1, the only one in version 2.
fn controller() -> Result<std::path::PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    let places = [top.join("pids"), top.to_owned()];
    let found = places
        .into_iter()
        .find(|place| place.join("cgroup.procs").exists());
    found.context("no control groups are mounted")
}

fn run(command: &mut Command) -> Result<()> {
    let output = program::output(command)?;
    ensure!(output.status.success(), "{command:?}: {output:?}");
    Ok(())
}
