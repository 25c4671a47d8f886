//! The ballast on a real small file system.

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;

/// A tmpfs of 32 MiB, on which the ballast takes 1 MiB.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Self {
        let place = tempfile::tempdir().unwrap();
        let options = Some("size=32m,mode=0755");
        let flags = MsFlags::MS_NOSUID;
        mount(
            Some("ballast-test"),
            place.path(),
            Some("tmpfs"),
            flags,
            options,
        )
        .unwrap();
        Self(place)
    }

    fn fill(&self, mib: u64) {
        let filler = File::create(self.0.path().join("filler")).unwrap();
        let bytes = i64::try_from(mib << 20).unwrap();
        fallocate(&filler, FallocateFlags::empty(), 0, bytes).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        umount2(self.0.path(), MntFlags::MNT_DETACH).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn ballast_is_given_up_on_a_full_file_system_and_made_again() {
    let disk = Small::mount();
    let ballast = Ballast::new(disk.0.path());
    assert_eq!(ballast.look(), Look::Made);
    assert_eq!(fs::metadata(&ballast.path).unwrap().len(), 1 << 20);
    assert_eq!(ballast.look(), Look::Same);
    disk.fill(30);
    assert_eq!(ballast.look(), Look::Same, "a mebibyte is free beside it");
    disk.fill(31);
    assert_eq!(ballast.look(), Look::GivenUp);
    assert_eq!(ballast.look(), Look::Same, "too little for another");
    fs::write(disk.0.path().join("row"), [1; 4096]).unwrap();
    // Truncated, since a process that a parallel test forks can have it open for a moment.
    fs::write(disk.0.path().join("filler"), []).unwrap();
    assert_eq!(ballast.look(), Look::Made);
}

#[test]
#[ignore = "needs root"]
fn ballast_that_was_begun_only_is_made_whole() {
    let disk = Small::mount();
    let ballast = Ballast::new(disk.0.path());
    fs::write(&ballast.path, "part").unwrap();
    assert_eq!(ballast.look(), Look::Made);
    assert_eq!(fs::metadata(&ballast.path).unwrap().len(), 1 << 20);
}

#[test]
fn ballast_is_given_up_on_request_whatever_is_free() {
    let state = tempfile::tempdir().unwrap();
    let ballast = Ballast::new(state.path());
    assert!(!ballast.give_up(), "there is none");
    fs::write(&ballast.path, "whole").unwrap();
    assert!(ballast.give_up());
    assert!(!ballast.path.exists());
}
