//! Backups in a directory: written, read back, spoiled, and left by a process that was killed.
//!
//! Invariant: plain files stand for layers; who else writes to the target is the test.
//! Failure: a test names the file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::{self, ThreadId};

use super::*;
use crate::backup::mount::{removed, unfinished};
use crate::images::{Digest, Format};

mod buckets;
mod power_cut;
mod server;

const MIB: usize = 1 << 20;

fn uid(n: u8) -> VmUid {
    format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b{n:02x}")
        .parse()
        .unwrap()
}

const VM: u8 = 0xff;
/// The machine of all backups.
const NAME: &str = "ns/vm";

/// A target, and files that stand for layers.
struct Place {
    scratch: tempfile::TempDir,
    target: Target,
}

impl Place {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().join("target");
        fs::create_dir(&root).unwrap();
        let root = Location::Directory(root);
        let targets = Targets::new(BTreeMap::from([("nfs".to_owned(), root)]));
        let target = targets.find("nfs", uid(VM), NAME).unwrap();
        assert!(matches!(
            targets.find("other", uid(VM), NAME),
            Err(Error::NoTarget(_))
        ));
        Self { scratch, target }
    }

    fn mount(&self) -> &Mount {
        match &self.target.store {
            Store::Mount(mount) => mount,
            Store::Bucket(_) => panic!("it is a directory"),
        }
    }

    fn machine(&self) -> PathBuf {
        self.scratch.path().join("target").join(uid(VM).to_string())
    }

    fn file(&self, backup: u8, name: &str) -> PathBuf {
        self.machine().join(uid(backup).to_string()).join(name)
    }

    fn original(&self, name: &str, bytes: &[u8], format: Format) -> Original {
        let path = self.scratch.path().join(name);
        fs::write(&path, bytes).unwrap();
        Original { path, format }
    }

    async fn write(
        &self,
        number: u8,
        parent: Option<Parent>,
        originals: Vec<Original>,
    ) -> (Manifest, Digest) {
        self.target.prepare(uid(number)).await.unwrap();
        let mut percent = |_| {};
        let written = self
            .target
            .write(draft(number, parent), originals, &mut percent);
        let written = written.await.unwrap();
        self.target.publish(&written.0).await.unwrap();
        written
    }

    /// A full backup and an increment; the digest of the manifest of that.
    async fn chain(&self) -> Digest {
        let layer = self.original(
            "layer",
            &[vec![1; MIB], vec![0; 9 * MIB]].concat(),
            Format::Qcow2,
        );
        let image = self.original("image", &vec![2; 5 * MIB], Format::Raw);
        let (full, sha256) = self.write(1, None, vec![layer, image]).await;
        assert_eq!(
            (full.read_bytes, full.bytes()),
            (6 * MIB as u64, 15 * MIB as u64)
        );
        let parent = Parent {
            uid: uid(1),
            sha256,
        };
        let upper = self.original("upper", b"changes", Format::Qcow2);
        self.write(2, Some(parent), vec![upper]).await.1
    }

    async fn verify(&self, expected: Option<Digest>) -> Result<u64> {
        let chain = self.target.chain(uid(2), expected).await?;
        chain.verify(&mut |_| {}).await
    }
}

fn draft(number: u8, parent: Option<Parent>) -> Draft {
    Draft {
        uid: uid(number),
        vm: uid(VM),
        name: "ns/vm".to_owned(),
        created_at: number.into(),
        quiesced: false,
        running: true,
        virtual_bytes: 1 << 30,
        image: "image".to_owned(),
        digest: String::new(),
        parent,
        full_reason: String::new(),
    }
}

#[tokio::test]
async fn what_was_written_is_read_back() {
    let place = Place::new();
    let sha256 = place.chain().await;
    let chain = place.target.chain(uid(2), Some(sha256)).await.unwrap();
    assert_eq!((chain.length(), chain.count()), (2, 3));
    assert_eq!(chain.newest().unwrap().0.created_at, 2);
    chain.check_lengths().await.unwrap();
    let full = place.target.manifest(uid(1)).await.unwrap().unwrap();
    assert_eq!(chain.digest_of(uid(1)), Some(full.1));
    assert_eq!(chain.digest_of(uid(3)), None);
    // The layer has zeros for the most part.
    assert_eq!(chain.stored(), 6 * MIB as u64 + "changes".len() as u64);
    let mut seen = 0;
    let read = chain.verify(&mut |bytes| seen += bytes).await.unwrap();
    assert_eq!((read, seen), (chain.bytes(), chain.bytes()));
    let staging = place.scratch.path().join("staging");
    fs::create_dir(&staging).unwrap();
    let staged = chain.stage(&staging, &mut |_| {}).await.unwrap();
    let formats: Vec<_> = staged.iter().map(|file| file.format).collect();
    assert_eq!(formats, [Format::Qcow2, Format::Qcow2, Format::Raw]);
    for (file, original) in staged.iter().zip(["upper", "layer", "image"]) {
        let original = fs::read(place.scratch.path().join(original)).unwrap();
        assert!(fs::read(&file.path).unwrap() == original, "{file:?}");
    }
    assert!(chain.check_namespace("ns/other").is_ok());
    let refused = chain.check_namespace("other/vm").unwrap_err();
    assert!(matches!(refused, Error::OtherNamespace { .. }), "{refused}");
}

#[tokio::test]
async fn a_byte_that_was_changed_is_found_by_the_name_of_its_file() {
    let place = Place::new();
    let sha256 = place.chain().await;
    let file = place.file(1, "0.qcow2");
    let mut bytes = fs::read(&file).unwrap();
    bytes[8 * MIB] = 1;
    fs::write(&file, &bytes).unwrap();
    let spoiled = place.verify(None).await.unwrap_err();
    let words = spoiled.to_string();
    assert!(
        words.starts_with(&format!("file 0.qcow2 of backup {}", uid(1))),
        "{words}"
    );
    assert!(!spoiled.is_transient());
    fs::write(&file, &bytes[1..]).unwrap();
    let chain = place.target.chain(uid(2), Some(sha256)).await.unwrap();
    assert!(
        chain
            .check_lengths()
            .await
            .unwrap_err()
            .to_string()
            .contains("bytes")
    );
    fs::remove_file(&file).unwrap();
    let gone = chain.check_lengths().await.unwrap_err();
    assert!(gone.to_string().contains("it is gone"), "{gone}");
}

/// Who can write to the target can write manifests, too.
#[tokio::test]
async fn a_manifest_is_the_one_whose_digest_is_known() {
    let place = Place::new();
    let sha256 = place.chain().await;
    place.verify(Some(sha256)).await.unwrap();
    for backup in [1, 2] {
        let file = place.file(backup, "manifest.json");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text} ")).unwrap();
        let spoiled = place.verify(Some(sha256)).await.unwrap_err();
        assert!(matches!(spoiled, Error::Spoiled { .. }), "{spoiled}");
        fs::write(&file, text).unwrap();
    }
    let missing = place.target.chain(uid(3), None).await.unwrap_err();
    assert!(matches!(missing, Error::Absent { .. }), "{missing}");
}

/// Another export is mounted in its place, say.
#[tokio::test]
async fn a_target_that_has_nothing_of_the_machine_is_no_damage() {
    let place = Place::new();
    place.chain().await;
    let elsewhere = place.scratch.path().join("elsewhere");
    fs::rename(place.machine(), &elsewhere).unwrap();
    let missing = place.verify(None).await.unwrap_err();
    assert!(matches!(missing, Error::Empty { .. }), "{missing}");
    assert!(missing.is_transient());
    fs::rename(&elsewhere, place.machine()).unwrap();
    place.verify(None).await.unwrap();
}

#[tokio::test]
async fn a_manifest_names_no_file_elsewhere_and_no_other_backup() {
    let place = Place::new();
    place.chain().await;
    let file = place.file(2, "manifest.json");
    let text = fs::read_to_string(&file).unwrap();
    let long = format!("\"image\": \"{}\"", "i".repeat(2000));
    for (from, to) in [
        ("0.qcow2", "../0.qcow2"),
        ("0.qcow2", "1.qcow2"),
        ("0.qcow2", "0.raw"),
        ("\"version\": 1", "\"version\": 2"),
        ("\"image\": \"image\"", &long),
        (&uid(2).to_string(), &uid(7).to_string()),
        (&uid(1).to_string(), &uid(2).to_string()),
        (&uid(VM).to_string(), &uid(7).to_string()),
    ] {
        assert!(text.contains(from), "{from}");
        fs::write(&file, text.replace(from, to)).unwrap();
        let refused = place.verify(None).await.unwrap_err();
        assert!(matches!(refused, Error::Manifest { .. }), "{to}: {refused}");
    }
    fs::write(&file, " ".repeat(2 * MIB)).unwrap();
    let refused = place.verify(None).await.unwrap_err();
    assert!(refused.to_string().contains("more than"), "{refused}");
}

#[tokio::test]
async fn no_link_of_the_target_is_followed() {
    let place = Place::new();
    place.chain().await;
    let elsewhere = place.scratch.path().join("layer");
    let file = place.file(1, "0.qcow2");
    fs::remove_file(&file).unwrap();
    symlink(&elsewhere, &file).unwrap();
    let refused = place.verify(None).await.unwrap_err();
    assert!(
        matches!(&refused, Error::NotPlain(path) if *path == file),
        "{refused}"
    );
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let refused = place.verify(None).await.unwrap_err();
    assert!(matches!(refused, Error::NotPlain(_)), "{refused}");
    // Nor one in the place of a directory.
    let other = place.scratch.path().join("other");
    fs::rename(place.machine(), &other).unwrap();
    symlink(&other, place.machine()).unwrap();
    let refused = place.target.prepare(uid(5)).await.unwrap_err();
    assert!(matches!(refused, Error::NotPlain(_)), "{refused}");
    let names: Vec<_> = fs::read_dir(&other).unwrap().collect();
    assert_eq!(names.len(), 2, "nothing was made behind the link");
}

#[tokio::test]
async fn what_an_attempt_has_left_is_no_backup_and_is_removed_by_the_next() {
    let place = Place::new();
    place.target.prepare(uid(1)).await.unwrap();
    let left = place.machine().join(unfinished(uid(1)));
    fs::write(left.join("0.qcow2"), "a part").unwrap();
    assert_eq!(place.target.manifest(uid(1)).await.unwrap(), None);
    let foreign = place.machine().join(".new-notes");
    fs::create_dir(&foreign).unwrap();
    place.chain().await;
    assert!(!left.exists() && foreign.exists());
    // A file that cannot be read leaves nothing.
    let absent = Original {
        path: place.scratch.path().join("absent"),
        format: Format::Qcow2,
    };
    place.target.prepare(uid(3)).await.unwrap();
    // The removal of another backup leaves what is being written.
    place.target.remove(uid(4), "ns/vm").await.unwrap();
    assert!(place.machine().join(unfinished(uid(3))).exists());
    let mut percent = |_| {};
    let failed = place
        .target
        .write(draft(3, None), vec![absent], &mut percent);
    failed.await.unwrap_err();
    assert!(!place.machine().join(unfinished(uid(3))).exists());
}

#[tokio::test]
async fn a_backup_is_removed_after_those_that_are_based_on_it() {
    let place = Place::new();
    place.chain().await;
    let remove = async |n| place.target.remove(uid(n), "ns/vm").await;
    let needed = remove(1).await.unwrap_err();
    assert!(
        matches!(needed, Error::Needed { child, .. } if child == uid(2)),
        "{needed}"
    );
    let other = place.target.remove(uid(2), "other/vm").await.unwrap_err();
    assert!(matches!(other, Error::OtherNamespace { .. }), "{other}");
    remove(2).await.unwrap();
    remove(2).await.unwrap();
    assert!(place.target.manifest(uid(1)).await.unwrap().is_some());
    // One whose manifest cannot be read can be removed, too.
    fs::write(place.file(1, "manifest.json"), "{").unwrap();
    remove(1).await.unwrap();
    assert!(!place.file(1, "").exists());
}

#[tokio::test]
async fn a_backup_whose_base_was_removed_meanwhile_is_none() {
    let place = Place::new();
    let layer = place.original("layer", b"layer", Format::Qcow2);
    let (_, sha256) = place.write(1, None, vec![layer.clone()]).await;
    let uid_of_base = uid(1);
    place.target.prepare(uid(2)).await.unwrap();
    fs::remove_dir_all(place.file(1, "")).unwrap();
    let parent = Parent {
        uid: uid_of_base,
        sha256,
    };
    let mut percent = |_| {};
    let written = place
        .target
        .write(draft(2, Some(parent)), vec![layer], &mut percent);
    let (manifest, _) = written.await.unwrap();
    let published = place.target.publish(&manifest).await;
    let refused = published.unwrap_err();
    assert!(
        matches!(refused, Error::ParentRemoved(base) if base == uid_of_base),
        "{refused}"
    );
    assert!(refused.is_transient() && !place.file(2, "").exists());
}

#[tokio::test]
async fn a_target_that_is_not_mounted_is_reported() {
    let absent = Location::Directory("/absent/target".into());
    let targets = Targets::new(BTreeMap::from([("nfs".to_owned(), absent)]));
    let target = targets.find("nfs", uid(VM), NAME).unwrap();
    let refused = target.prepare(uid(1)).await.unwrap_err();
    assert!(
        refused.is_transient() && refused.to_string().contains("/absent/target"),
        "{refused}"
    );
}

/// The daemon was killed before it looked whether another node has written one that is based on it.
#[tokio::test]
async fn a_removal_that_was_cut_short_looks_for_children_again() {
    let place = Place::new();
    place.chain().await;
    let machine = place.machine();
    let hide = || fs::rename(place.file(1, ""), machine.join(removed(uid(1)))).unwrap();
    hide();
    place.target.sweep().await.unwrap();
    let needed = place.target.remove(uid(1), "ns/vm").await.unwrap_err();
    assert!(matches!(needed, Error::Needed { .. }), "{needed}");
    place.verify(None).await.unwrap();
    place.target.remove(uid(2), "ns/vm").await.unwrap();
    hide();
    place.target.remove(uid(1), "ns/vm").await.unwrap();
    assert_eq!(fs::read_dir(&machine).unwrap().count(), 0);
}

#[tokio::test]
async fn a_file_that_grows_while_it_is_read_is_not_read_to_its_end() {
    let place = Place::new();
    place.chain().await;
    let chain = place.target.chain(uid(2), None).await.unwrap();
    let file = place.file(1, "0.qcow2");
    let mut grow = |bytes| {
        // The first step of a file that has several.
        if bytes != 4 << 20 {
            return;
        }
        let longer = fs::File::options().append(true).open(&file).unwrap();
        longer
            .set_len(longer.metadata().unwrap().len() + 1)
            .unwrap();
    };
    let grown = chain.verify(&mut grow).await.unwrap_err();
    assert!(
        matches!(&grown, Error::Grown(path) if *path == file),
        "{grown}"
    );
    assert!(!grown.is_transient());
}

#[tokio::test(start_paused = true)]
async fn a_target_that_hangs_takes_some_threads_and_no_more() {
    let place = Place::new();
    let threads = u32::try_from(THREADS).unwrap();
    let taken = place.mount().threads.acquire_many(threads).await.unwrap();
    let hung = place.target.sweep().await.unwrap_err();
    assert!(matches!(hung, Error::Hung(_)), "{hung}");
    drop(taken);
    place.target.sweep().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn threads_that_other_claims_take_are_not_said_to_be_those_of_the_target() {
    let place = Place::new();
    let shared = Arc::new(Semaphore::new(1));
    let mount = Mount {
        shared: Some(Arc::clone(&shared)),
        ..place.mount().clone()
    };
    let taken = shared.acquire().await.unwrap();
    let crowded = mount.sweep().await.unwrap_err();
    assert!(matches!(crowded, Error::Crowded(_)), "{crowded}");
    assert!(crowded.is_transient());
    let of_target = u32::try_from(THREADS).unwrap();
    let of_target = mount.threads.acquire_many(of_target).await.unwrap();
    let hung = mount.sweep().await.unwrap_err();
    assert!(matches!(hung, Error::Hung(_)), "{hung}");
    drop(of_target);
    drop(taken);
    mount.sweep().await.unwrap();
    assert_eq!(shared.available_permits(), 1);
}

/// Something that is open in the target: shows which thread closes it.
struct Opened(mpsc::Sender<ThreadId>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.send(thread::current().id()).unwrap();
    }
}

impl Mount {
    /// Fails to begin in time; returns where the thread that closes what it has open is shown.
    async fn not_begun(&self) -> mpsc::Receiver<ThreadId> {
        let (sender, closed) = mpsc::channel();
        let opened = Opened(sender);
        let work = move |_: &Self| {
            drop(opened);
            Ok(())
        };
        let hung = self.run(work).await.unwrap_err();
        assert!(matches!(hung, Error::Hung(_)), "{hung}");
        closed
    }
}

#[tokio::test(start_paused = true)]
async fn what_work_that_never_began_has_open_is_closed_by_a_thread() {
    let place = Place::new();
    let target = place.mount();
    let turn = target.foreign.hold(target.owner());
    let of_turn = target.not_begun().await;
    assert!(of_turn.try_recv().is_err(), "another thread has the turn");
    drop(turn);
    let threads = u32::try_from(THREADS).unwrap();
    let taken = target.threads.acquire_many(threads).await.unwrap();
    let of_place = target.not_begun().await;
    drop(taken);
    // Later work of the machine waits for it.
    place.target.sweep().await.unwrap();
    for closed in [of_turn, of_place] {
        let by = closed.try_recv().expect("it is closed before");
        assert_ne!(by, thread::current().id());
    }
}
