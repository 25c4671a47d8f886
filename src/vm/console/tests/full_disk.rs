//! A log on a disk without space.
//!
//! Invariant: nothing is lost, nothing half-written stays, the guest's file is not touched.
//! Failure: the mount is taken away in any case.

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;

/// A tmpfs of 64 KiB.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Self {
        fs::create_dir_all(path).unwrap();
        let size = Some("size=64k,mode=0755");
        mount(
            Some("console-test"),
            path,
            Some("tmpfs"),
            MsFlags::MS_NOSUID,
            size,
        )
        .unwrap();
        Self(path.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_full_disk_holds_lines_back_until_there_is_space() {
    let console = Console::new();
    let disk = SmallDisk::mount(console.paths.log.parent().unwrap());
    let ballast = disk.0.join("ballast");
    let page = 4096;
    fs::write(&ballast, vec![0; 15 * page]).unwrap();
    let follower = console.follow().await;
    console.write("fits\n");
    console.logs(&["F fits"]).await;
    // Two pages of log, and only a part of one is left.
    let text = "y".repeat(8000);
    console.write(&format!("{text}\n"));
    let watch = Watch::on(&File::open(&console.paths.log).unwrap()).unwrap();
    // The failed write and its undoing.
    timeout(LONG, watch.changed()).await.unwrap();
    follower.stop().await;
    assert_eq!(console.log(), ["F fits"], "nothing half-written stays");
    let follower = console.follow().await;
    fs::remove_file(&ballast).unwrap();
    console.logs(&["F fits", &format!("F {text}")]).await;
    follower.finish().await.unwrap();
    assert_eq!(console.log().len(), 2);
}
