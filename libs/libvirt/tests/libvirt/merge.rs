//! A real QEMU copies files of its first disk to those below them.
//!
//! Invariant: the guest sits in the firmware; what it would write is written by QEMU's own monitor. What the disk
//! has afterwards is read without QEMU.
//! Failure: the test names the file, or what it lacks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use libvirt::harness::Libvirtd;
use libvirt::{BlockCommit, BlockJob, BlockJobEnd, Error, Hypervisor, Libvirt, Settings};
use uuid::Uuid;

use super::switch::{create, disks, root, xml};

const TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn run(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output().unwrap();
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {words}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// 64 KiB of a pattern in a file that no emulator has open.
pub(super) fn write(file: &Path, pattern: u8) {
    let command = format!("write -P {pattern} {}k 64k", u32::from(pattern) * 64);
    let file = file.to_str().unwrap();
    run("qemu-io", &["-f", "qcow2", "-c", &command, file]);
}

pub(super) fn reads(file: &Path, pattern: u8) {
    let command = format!("read -P {pattern} {}k 64k", u32::from(pattern) * 64);
    let file = file.to_str().unwrap();
    let said = run(
        "qemu-io",
        &["-U", "-r", "-f", "qcow2", "-c", &command, file],
    );
    assert!(!said.contains("failed"), "{pattern}: {said}");
}

/// As the guest would.
pub(super) fn guest_writes(libvirtd: &Libvirtd, pattern: u8) {
    let device = "/machine/peripheral/virtio-disk0/virtio-backend";
    let place = u32::from(pattern) * 64;
    let command = format!(r#"qemu-io -d {device} "write -P {pattern} {place}k 64k""#);
    let uri = libvirtd.uri();
    let monitor = [
        "-c",
        &uri,
        "qemu-monitor-command",
        "switched",
        "--hmp",
        &command,
    ];
    let said = run("virsh", &monitor);
    // QEMU prints what it has done elsewhere, and only an error here.
    assert_eq!(said.trim(), "");
}

/// A machine with three files, each of which has a pattern of its number: `0`, `1` and `root`, the upper one.
pub(super) async fn machine(libvirtd: &Libvirtd, hv: &Libvirt) -> (Uuid, [PathBuf; 3]) {
    let folder = disks(libvirtd);
    let files = ["0.qcow2", "1.qcow2", "root.qcow2"].map(|name| folder.join(name));
    for (number, file) in (1u8..).zip(&files) {
        let below = usize::from(number)
            .checked_sub(2)
            .map(|below| &*files[below]);
        create(file, below);
        write(file, number);
    }
    let id = Uuid::new_v4();
    let below = [files[1].clone(), files[0].clone()];
    let own = r#"<seclabel model="dac" relabel="no"/>"#;
    let described = xml(id, &folder, &below).replace(own, "");
    hv.define(described).await.unwrap();
    hv.start(id).await.unwrap();
    (id, files)
}

fn commit(top: &Path, base: &Path, is_active: bool) -> BlockCommit {
    BlockCommit {
        top: top.to_owned(),
        base: base.to_owned(),
        is_active,
        bytes_per_second: 64 << 20,
    }
}

/// The job when it is ready, or is gone.
async fn copied(hv: &Libvirt, id: Uuid) -> Option<BlockJob> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let job = hv.root_job(id).await.unwrap();
        if job.is_none_or(BlockJob::is_ready) {
            return job;
        }
        assert!(Instant::now() < end, "{job:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The files of the first disk that the emulator has open, and whether it only reads them.
pub(super) async fn open(hv: &Libvirt, id: Uuid, files: &[PathBuf; 3]) -> Vec<(usize, bool)> {
    let open = hv.disk_files(id).await.unwrap().unwrap();
    let known = files.iter().enumerate().filter_map(|(number, path)| {
        let found = open.iter().find(|file| file.path == *path)?;
        Some((number, found.is_read_only))
    });
    known.collect()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_file_below_the_first_is_merged_by_itself() {
    let libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let (id, files) = machine(&libvirtd, &hv).await;
    assert_eq!(hv.root_job(id).await.unwrap(), None);
    let all = [(0, true), (1, true), (2, false)];
    assert_eq!(open(&hv, id, &files).await, all);
    let odd = hv.commit_root(id, commit(&files[1], &files[0], true)).await;
    assert!(matches!(odd, Err(Error::Refused { .. })), "{odd:?}");
    let begun = hv.commit_root(id, commit(&files[1], &files[0], false));
    begun.await.unwrap();
    guest_writes(&libvirtd, 9);
    assert_eq!(copied(&hv, id).await, None);
    assert_eq!(open(&hv, id, &files).await, [(0, true), (2, false)]);
    assert_eq!(root(&hv, id).await, Some(files[2].clone()));
    // What is only read is on the device.
    for pattern in [1, 2] {
        reads(&files[0], pattern);
    }
    let none = hv.end_root_job(id, BlockJobEnd::Cancel).await;
    assert!(matches!(none, Err(Error::Refused { .. })), "{none:?}");
    hv.destroy(id).await.unwrap();
    for pattern in [1, 2, 3, 9] {
        reads(&files[2], pattern);
    }
    hv.undefine(id).await.unwrap();
    assert_eq!(hv.disk_files(id).await.unwrap(), None);
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_first_file_is_merged_when_it_is_requested() {
    let mut libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let (id, files) = machine(&libvirtd, &hv).await;
    let begin = || hv.commit_root(id, commit(&files[2], &files[1], true));

    begin().await.unwrap();
    assert!(copied(&hv, id).await.is_some(), "it waits for its end");
    hv.end_root_job(id, BlockJobEnd::Cancel).await.unwrap();
    assert_eq!(hv.root_job(id).await.unwrap(), None);
    assert_eq!(root(&hv, id).await, Some(files[2].clone()));
    guest_writes(&libvirtd, 7);

    begin().await.unwrap();
    assert!(copied(&hv, id).await.is_some());
    guest_writes(&libvirtd, 8);
    // A libvirtd that was killed finds the job again.
    libvirtd.kill();
    libvirtd.launch().unwrap();
    hv.connected().await;
    while root(&hv, id).await.is_none() {}
    assert!(copied(&hv, id).await.is_some());
    let begun = Instant::now();
    hv.suspend(id).await.unwrap();
    assert!(copied(&hv, id).await.is_some());
    hv.end_root_job(id, BlockJobEnd::Pivot).await.unwrap();
    assert_eq!(root(&hv, id).await, Some(files[1].clone()));
    hv.resume(id).await.unwrap();
    eprintln!("the guest was paused for {:?}", begun.elapsed());
    assert_eq!(hv.root_job(id).await.unwrap(), None);
    assert_eq!(open(&hv, id, &files).await, [(0, true), (1, false)]);
    guest_writes(&libvirtd, 9);

    // A file with nothing in it is copied at once.
    let empty = files[0].with_file_name("empty.qcow2");
    create(&empty, Some(&files[1]));
    hv.switch_root(id, empty.clone()).await.unwrap();
    let begun = hv.commit_root(id, commit(&empty, &files[1], true));
    begun.await.unwrap();
    assert!(copied(&hv, id).await.is_some());
    hv.end_root_job(id, BlockJobEnd::Pivot).await.unwrap();
    assert_eq!(root(&hv, id).await, Some(files[1].clone()));
    hv.destroy(id).await.unwrap();
    for pattern in [1, 2, 3, 7, 8, 9] {
        reads(&files[1], pattern);
    }
    hv.undefine(id).await.unwrap();
}
