//! Files that the program reads while another user has them.
//!
//! Invariant: as of the other tests.
//! Failure: the owner, the mode or the words that differ.

use std::sync::Arc;

use super::*;
use crate::disk::qemu_img::shared::Readers;

const LIST: &str = "system.posix_acl_access";

/// A layer of a machine's user, closed to all others.
fn layer(dir: &Path) -> PathBuf {
    let path = dir.join("layer.qcow2");
    let name = path.to_str().unwrap();
    let made = std::process::Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", name, "1M"])
        .status();
    assert!(made.unwrap().success());
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&path, Some(4711), Some(4711)).unwrap();
    path
}

/// Owner, group and mode of a file, and whether it has a list.
fn state(path: &Path) -> (u32, u32, u32, bool) {
    let is = std::fs::metadata(path).unwrap();
    let mut value = [0; 256];
    let list = rustix::fs::getxattr(path, LIST, &mut value);
    (is.uid(), is.gid(), is.mode() & 0o777, list.is_ok())
}

fn source(disk: &Path) -> Source<'_> {
    Source {
        disk,
        below: &[],
        base: None,
        size: 1 << 20,
        access: Access::Shared,
        guard: Arc::new(()),
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_keeps_its_file_while_the_program_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = layer(dir.path());
    let before = state(&path);
    assert_eq!(before, (4711, 4711, 0o600, false));
    let program = qemu_img();
    let copy = dir.path().join("copy.qcow2");
    program
        .copy_out(source(&path), &copy, |_| {})
        .await
        .unwrap();
    assert!(copy.exists());
    assert_eq!(state(&path), before);

    // Two readers: the list goes with the last one.
    let opened = || Foreign::default().keep("/disks", File::open(&path).unwrap());
    let first = program.share(&opened(), None).await.unwrap();
    let second = program.share(&opened(), None).await.unwrap();
    assert_eq!(state(&path), (4711, 4711, 0o640, true));
    first.take_back().await;
    assert!(state(&path).3, "the second one has no right any more");
    second.take_back().await;
    assert_eq!(state(&path), before);
}

#[tokio::test]
#[ignore = "needs root"]
async fn each_run_reads_a_file_as_its_own_user() {
    let dir = tempfile::tempdir().unwrap();
    let path = layer(dir.path());
    let opened = || Foreign::default().keep("/disks", File::open(&path).unwrap());
    let program = qemu_img();
    let runs = [program.for_run().unwrap(), program.for_run().unwrap()];
    let users = runs.each_ref().map(|run| run.helper.user().uid);
    assert_ne!(users[0], users[1]);
    let has_right = |user: u32| {
        let mut value = [0; 256];
        let length = rustix::fs::getxattr(&path, LIST, &mut value).unwrap();
        // Behind the version: tag, rights and user of each entry.
        let mut entries = value[4..length].chunks(8);
        entries.any(|entry| entry[4..] == user.to_le_bytes())
    };
    let first = runs[0].share(&opened(), None).await.unwrap();
    assert!(has_right(users[0]) && !has_right(users[1]));
    let second = runs[1].share(&opened(), None).await.unwrap();
    assert!(users.into_iter().all(has_right));
    first.take_back().await;
    assert!(!has_right(users[0]) && has_right(users[1]));
    second.take_back().await;
    assert_eq!(state(&path), (4711, 4711, 0o600, false));
}

/// It runs on a layer below the two.
#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_keeps_its_file_while_layers_above_it_are_merged() {
    let dir = tempfile::tempdir().unwrap();
    let lower = layer(dir.path());
    let before = state(&lower);
    let run = |program: &str, arguments: &[&str]| {
        let done = std::process::Command::new(program).args(arguments).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
    };
    let files = ["parent.qcow2", "child.qcow2"].map(|name| dir.path().join(name));
    for file in &files {
        let name = file.to_str().unwrap();
        run("qemu-img", &["create", "-q", "-f", "qcow2", name, "1M"]);
    }
    let [parent, child] = files;
    let name = child.to_str().unwrap();
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 7 4k 4k", name]);
    let merge = Merge {
        child: &child,
        layers: &[parent.clone(), lower.clone()],
        base: None,
        size: 1 << 20,
        access: Access::Shared,
        guard: Arc::new(()),
    };
    qemu_img().merge(merge, |_| {}).await.unwrap();
    assert_eq!(state(&lower), before);
    let name = parent.to_str().unwrap();
    run("qemu-io", &["-f", "qcow2", "-c", "read -P 7 4k 4k", name]);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_reader_that_ends_takes_no_right_from_one_that_begins() {
    let dir = tempfile::tempdir().unwrap();
    let path = layer(dir.path());
    let program = qemu_img();
    let readers = (0..8).map(|number| {
        let program = program.clone();
        let path = path.clone();
        tokio::spawn(async move {
            // Threads of its own, as of another disk.
            let foreign = Foreign::default();
            for _ in 0..200 {
                let opened = foreign.keep("/disks", File::open(&path).unwrap());
                let lent = program.share(&opened, None).await.unwrap();
                assert!(state(&path).3, "reader {number} has no right");
                lent.take_back().await;
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.unwrap();
    }
    assert_eq!(state(&path), (4711, 4711, 0o600, false));
    assert!(
        program.readers.is_empty(),
        "a file is known without readers"
    );
}

#[test]
fn a_file_is_known_no_more_however_its_last_readers_end() {
    const READERS: usize = 4;
    let file = tempfile::tempfile().unwrap();
    let readers = Readers::default();
    let together = std::sync::Barrier::new(READERS);
    let left = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..READERS {
            let file = &file;
            let readers = &readers;
            let together = &together;
            let left = &left;
            scope.spawn(move || {
                for _ in 0..2000 {
                    // One that is refused ends beside the others.
                    let permit = |_: &[u32]| match number {
                        0 => Err(rustix::io::Errno::OPNOTSUPP),
                        _ => Ok(()),
                    };
                    let user = u32::try_from(number).unwrap();
                    let entered = readers.enter((0, 1), user, permit);
                    together.wait();
                    if let Ok(reader) = entered {
                        reader.leave(file);
                    }
                    let is_one = together.wait().is_leader();
                    if is_one && !readers.is_empty() {
                        left.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    together.wait();
                }
            });
        }
    });
    assert_eq!(left.into_inner(), 0, "a file is known without readers");
}

#[tokio::test]
#[ignore = "needs root"]
async fn what_an_earlier_process_left_goes_with_the_next_reader() {
    let dir = tempfile::tempdir().unwrap();
    let path = layer(dir.path());
    let opened = Foreign::default().keep("/disks", File::open(&path).unwrap());
    let killed = qemu_img().share(&opened, None).await.unwrap();
    std::mem::forget(killed);
    assert!(state(&path).3);
    let copy = dir.path().join("copy.qcow2");
    qemu_img()
        .copy_out(source(&path), &copy, |_| {})
        .await
        .unwrap();
    assert_eq!(state(&path), (4711, 4711, 0o600, false));
}
