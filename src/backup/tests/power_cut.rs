//! What a power cut of the target leaves of backups that were reported as complete, or as removed.
//!
//! Invariant: by the letter of POSIX.
//! Failure: the file, or the name that is gone or comes back.

use std::path::Path;

use testfs::StrictDisk;

use super::*;

fn on(disk: &StrictDisk) -> Place {
    let root = Location::Directory(disk.path());
    let targets = Targets::new(BTreeMap::from([("nfs".to_owned(), root)]));
    Place {
        scratch: tempfile::tempdir().unwrap(),
        target: targets.find("nfs", uid(VM), NAME).unwrap(),
    }
}

/// The names of the machine's directory after a power cut.
fn left(disk: &StrictDisk) -> Vec<String> {
    disk.names_after_cut(uid(VM).to_string()).unwrap()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_backup_that_was_published_is_whole() {
    let disk = StrictDisk::new().unwrap();
    let place = on(&disk);
    let layer = place.original("layer", &vec![1; 3 * MIB / 2], Format::Qcow2);
    place.write(1, None, vec![layer]).await;
    assert_eq!(left(&disk), [uid(1).to_string()]);
    let after = disk.cut().unwrap();
    for name in ["0.qcow2", "manifest.json"] {
        let path = Path::new(&uid(VM).to_string()).join(uid(1).to_string());
        let path = path.join(name);
        let there = fs::read(disk.path().join(&path)).unwrap();
        let then = fs::read(after.path().join(&path)).unwrap_or_default();
        assert!(then == there, "{name}");
    }
}

/// What writes a target syncs it whenever it likes.
#[tokio::test]
#[ignore = "needs root"]
async fn a_backup_has_its_files_before_it_has_its_name_and_when_it_is_found() {
    let disk = StrictDisk::new().unwrap();
    let place = on(&disk);
    let layer = place.original("layer", b"layer", Format::Qcow2);
    place.target.prepare(uid(1)).await.unwrap();
    let mut percent = |_| {};
    let written = place
        .target
        .write(draft(1, None), vec![layer], &mut percent);
    written.await.unwrap();
    let machine = disk.path().join(uid(VM).to_string());
    let sync = |directory: &Path| service::files::sync_directory(directory).unwrap();
    sync(&machine);
    let files = |backup: &str| {
        let directory = Path::new(&uid(VM).to_string()).join(backup);
        disk.names_after_cut(directory).unwrap()
    };
    assert_eq!(files(&unfinished(uid(1))), ["0.qcow2", "manifest.json"]);
    // Another node was about to sync it.
    let other = machine.join(uid(2).to_string());
    fs::create_dir(&other).unwrap();
    fs::write(other.join("manifest.json"), "").unwrap();
    place.target.settle(uid(2)).await.unwrap();
    assert_eq!(files(&uid(2).to_string()), ["manifest.json"]);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_name_that_was_given_or_taken_stays_so() {
    let disk = StrictDisk::new().unwrap();
    let place = on(&disk);
    let layer = place.original("layer", b"layer", Format::Qcow2);
    place.write(1, None, vec![layer]).await;
    let mount = place.mount();
    mount.hide(uid(1)).await.unwrap();
    assert_eq!(left(&disk), [removed(uid(1))]);
    mount.show(uid(1)).await.unwrap();
    assert_eq!(left(&disk), [uid(1).to_string()]);
    // One that is found may have its name in the memory of the target only.
    mount.unpublish(uid(1)).await.unwrap();
    disk.settle().unwrap();
    mount.publish(uid(1)).await.unwrap();
    place.target.settle(uid(1)).await.unwrap();
    assert_eq!(left(&disk), [uid(1).to_string()]);
    mount.hide(uid(1)).await.unwrap();
    mount.erase(uid(1)).await.unwrap();
    assert!(left(&disk).is_empty());
}
