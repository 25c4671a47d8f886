//! Files that are lent to the program: whose they are while it runs, and after.
//!
//! Invariant: as of the other tests; the runtime of a test has one thread.
//! Failure: the owner or the words that differ.

use nix::errno::Errno;

use super::*;
use crate::disk::qemu_img::lent::{Before, grant};
use crate::images::{Conversion, Converter as _, Convertible, Unconverted};

#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_is_the_programs_only_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    // The directory is closed to the program: it gets descriptors.
    let owner = || {
        let disk = std::fs::metadata(&disk).unwrap();
        (disk.uid(), disk.mode() & 0o777)
    };
    qemu_img()
        .overlay(&disk, raw(&image), 1 << 20)
        .await
        .unwrap();
    assert_eq!(owner(), (0, 0o600));
    qemu_img()
        .copy(&disk, raw(&image), 1 << 20, |_| {})
        .await
        .unwrap();
    assert_eq!(owner(), (0, 0o600));
    qemu_img().grow(&disk, 8 << 20).await.unwrap();
    assert_eq!(owner(), (0, 0o600));
    // A disk that another user has is that user's afterwards.
    std::os::unix::fs::chown(&disk, Some(4711), Some(4711)).unwrap();
    qemu_img().grow(&disk, 16 << 20).await.unwrap();
    assert_eq!(owner(), (4711, 0o600));
}

/// Storage with mapped users, or with none, gives no file to the user of a run.
#[test]
fn a_file_that_storage_gives_to_no_other_user_is_lent_by_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, "").unwrap();
    let file = File::open(&path).unwrap();
    let mode = || std::fs::metadata(&path).unwrap().mode() & 0o777;
    let lent = |errno: Errno| {
        let is = file.metadata().unwrap();
        grant(&file, &is, |_| Err(io::Error::from(errno)))
    };
    for errno in [
        Errno::EPERM,
        Errno::EACCES,
        Errno::EINVAL,
        Errno::EOVERFLOW,
        Errno::EOPNOTSUPP,
    ] {
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(lent(errno).unwrap(), Before::Mode(0o600), "{errno}");
        assert_eq!(mode(), 0o606, "{errno}");
    }
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let failed = lent(Errno::EIO).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(Errno::EIO as i32));
    assert_eq!(mode(), 0o600);
}

#[tokio::test]
#[ignore = "needs root"]
async fn every_run_has_a_user_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    let fake = script(dir.path(), "id -u >&2; exit 1");
    let path = dir.path().join("script");
    let helper = Helper::new(path, UNPRIVILEGED).reaching(dir.path());
    let fake = QemuImg { helper, ..fake };
    let part = Part {
        path: &image,
        offset: 0,
        size: 1 << 20,
    };
    let errors = [
        fake.overlay(&disk, raw(&image), 512).await.unwrap_err(),
        fake.copy(&disk, raw(&image), 512, |_| {})
            .await
            .unwrap_err(),
        fake.grow(&image, 2 << 20).await.unwrap_err(),
        fake.write(part, raw(&image), 512, opened(&image), |_| {})
            .await
            .unwrap_err(),
    ];
    let work = Conversion {
        source: image.clone(),
        from: Convertible::Vmdk,
        target: disk,
        most: 512,
    };
    std::fs::write(&work.target, "").unwrap();
    let Err(Unconverted::Failed(converted)) = fake.convert(&work).await else {
        panic!("converted");
    };
    let reasons = errors.map(|error| error.reason).into_iter();
    let users = reasons.chain([converted]).map(|text| text.parse().unwrap());
    let users: std::collections::BTreeSet<u32> = users.collect();
    assert_eq!(users.len(), 5, "{users:?}");
    assert!(users.iter().all(|uid| *uid >= helper::FIRST_USER));
    assert_eq!(std::fs::metadata(&image).unwrap().uid(), 0);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_file_of_another_user_is_written_as_the_configured_user() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    let fake = script(dir.path(), "id -u >&2; exit 1");
    qemu_img().overlay(&disk, raw(&image), 512).await.unwrap();
    std::os::unix::fs::chown(&disk, Some(4711), Some(4712)).unwrap();
    let reasons = [
        fake.grow(&disk, 2 << 20).await.unwrap_err().reason,
        fake.format_qcow2(opened(&disk), 2 << 20).await.unwrap_err(),
        fake.fill(
            as_disk(opened(&disk), Format::Raw),
            raw(&image),
            1 << 20,
            |_| {},
        )
        .await
        .unwrap_err(),
    ];
    assert_eq!(reasons, ["65534"; 3]);
    let after = std::fs::metadata(&disk).unwrap();
    assert_eq!((after.uid(), after.gid()), (4711, 4712));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_does_not_answer_is_an_error_after_a_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    std::fs::write(&disk, "").unwrap();
    let foreign = Foreign::default();
    let file = foreign.keep("/volume", File::open(&disk).unwrap());
    let _hung = foreign.hold("/volume".to_owned());
    let program = qemu_img();
    let open = || file.clone();
    for refused in [
        program.format_qcow2(open(), 1 << 20).await,
        program
            .fill(as_disk(open(), Format::Raw), raw(&image), 1 << 20, |_| {})
            .await,
        program.enlarge_qcow2(open(), 2 << 20).await,
    ] {
        assert_eq!(
            refused.unwrap_err(),
            "lend it to qemu-img: /volume did not answer within 20 s: check the server of the \
             volume, or the device"
        );
    }
}

/// The runtime of the test has one thread, which a close or a change of the owner would block.
#[tokio::test]
#[ignore = "needs root"]
async fn a_copy_that_is_cancelled_on_a_volume_that_hangs_is_taken_back_once_that_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (image, disk) = files(dir.path());
    std::fs::write(&disk, "").unwrap();
    std::os::unix::fs::chown(&disk, Some(4711), Some(4712)).unwrap();
    let owner = || std::fs::metadata(&disk).unwrap().uid();
    let foreign = Foreign::default();
    let opened = File::options().read(true).write(true).open(&disk);
    let file = foreign.keep("/volume", opened.unwrap());
    let (program, begun, _) = held(dir.path(), "convert", "exit 1");
    let filling = tokio::spawn(async move {
        let target = as_disk(file, Format::Raw);
        program.fill(target, raw(&image), 1 << 20, |_| {}).await
    });
    tokio::fs::read(&begun).await.unwrap();
    while foreign.is_taken(&"/volume".to_owned()) {
        tokio::task::yield_now().await;
    }
    let hung = foreign.hold("/volume".to_owned());
    filling.abort();
    assert!(filling.await.unwrap_err().is_cancelled());
    assert_eq!(owner(), UNPRIVILEGED, "no process has reached the volume");
    drop(hung);
    foreign.look("/volume", || ()).await.unwrap();
    assert_eq!(owner(), 4711);
}
