use tempfile::TempDir;

use super::*;
use crate::changes::Reader;
use crate::platform::Name;

const FILE: &str = "/etc/file";

fn node() -> (TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("opt")).unwrap();
    std::fs::create_dir_all(folder.path().join("etc")).unwrap();
    let root = Root::new(folder.path()).unwrap();
    (folder, root)
}

fn journal(root: &Root) -> Journal {
    Journal::read(root, Path::new("/opt/vmlet")).unwrap()
}

fn target() -> Target {
    Target {
        platform: Name::Kubeadm,
        service: "kubelet.service".into(),
        primary: "/run/containerd/containerd.sock".into(),
    }
}

/// Writes a text as the executor does.
fn write(root: &Root, journal: &mut Journal, text: &str) {
    let path = PathBuf::from(FILE);
    let change = Change {
        from: root.read(&path).unwrap(),
        to: Some(Content::new(text, 0o644)),
        reader: Reader::Kubelet,
        edit: None,
        path,
    };
    journal.changed(&change).unwrap();
    root.write(&change.path, change.to.as_ref().unwrap())
        .unwrap();
}

fn baseline(journal: &Journal) -> String {
    let saved = journal.state().files[Path::new(FILE)].baseline.as_ref();
    let content = journal.saved(saved.unwrap()).unwrap();
    content.text().unwrap().to_owned()
}

#[test]
fn the_baseline_is_the_last_content_of_others() {
    let (folder, root) = node();
    std::fs::write(folder.path().join("etc/file"), "theirs").unwrap();
    let mut journal = journal(&root);
    journal.open().unwrap();
    for text in ["first", "second"] {
        journal.begin(Operation::Install, target()).unwrap();
        write(&root, &mut journal, text);
        assert_eq!(baseline(&journal), "theirs");
        journal.finish(target()).unwrap();
        assert_eq!(baseline(&journal), "theirs");
    }
    std::fs::write(folder.path().join("etc/file"), "theirs, later").unwrap();
    journal.begin(Operation::Install, target()).unwrap();
    write(&root, &mut journal, "third");
    assert_eq!(baseline(&journal), "theirs, later");
    journal.finish(target()).unwrap();
    let again = self::journal(&root);
    assert_eq!(baseline(&again), "theirs, later");
    assert_eq!(again.state().installed, Some(target()));
    let contents = root.list(Path::new("/opt/vmlet/installer/saved")).unwrap();
    assert_eq!(contents.len(), 1, "{contents:?}");
}

#[test]
fn a_line_without_an_end_is_dropped() {
    let (folder, root) = node();
    let mut journal = journal(&root);
    journal.open().unwrap();
    journal.begin(Operation::Install, target()).unwrap();
    drop(journal);
    let path = folder.path().join("opt/vmlet/installer/journal");
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{whole}{{\"record\":\"fo")).unwrap();
    let mut journal = self::journal(&root);
    assert!(journal.state().unfinished.is_some());
    journal.open().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
    std::fs::write(&path, "{}\n").unwrap();
    let error = Journal::read(&root, Path::new("/opt/vmlet")).unwrap_err();
    assert!(error.to_string().ends_with("journal, line 1"), "{error}");
}

#[test]
fn one_installer_works_at_a_time() {
    let (_folder, root) = node();
    let mut first = journal(&root);
    let mut second = journal(&root);
    first.open().unwrap();
    let error = second.open().unwrap_err().to_string();
    assert!(error.contains("another vmlet-installer"), "{error}");
    drop(first);
    second.open().unwrap();
}

#[test]
fn nothing_is_left_of_a_journal_that_is_forgotten() {
    let (_folder, root) = node();
    let mut journal = journal(&root);
    journal.open().unwrap();
    journal.begin(Operation::Install, target()).unwrap();
    write(&root, &mut journal, "ours");
    assert!(journal.forget().unwrap().is_empty());
    assert!(root.list(Path::new("/opt")).unwrap().is_empty());
}

#[test]
fn a_withdrawal_that_was_not_finished_has_no_way_back() {
    let (_folder, root) = node();
    let mut journal = journal(&root);
    journal.open().unwrap();
    journal.begin(Operation::Install, target()).unwrap();
    assert!(!journal.state().has_way_back());
    journal.finish(target()).unwrap();
    assert!(journal.state().has_way_back());
    journal.begin(Operation::Withdraw, target()).unwrap();
    assert!(!journal.state().has_way_back());
    journal.begin(Operation::Install, target()).unwrap();
    assert!(!journal.state().has_way_back());
}

#[test]
#[ignore = "needs root"]
fn a_power_cut_takes_no_record_and_no_content_that_was_saved() {
    let disk = testfs::StrictDisk::new().unwrap();
    for folder in ["opt", "etc"] {
        std::fs::create_dir(disk.path().join(folder)).unwrap();
    }
    std::fs::write(disk.path().join("etc/file"), "theirs").unwrap();
    disk.settle().unwrap();
    let root = Root::new(&disk.path()).unwrap();
    let mut journal = journal(&root);
    journal.open().unwrap();
    journal.begin(Operation::Install, target()).unwrap();
    write(&root, &mut journal, "ours");
    for is_finished in [false, true] {
        if is_finished {
            journal.finish(target()).unwrap();
        }
        let left = disk.cut().unwrap();
        let read = self::journal(&Root::new(left.path()).unwrap());
        assert_eq!(baseline(&read), "theirs");
        assert_eq!(read.state().installed, is_finished.then(target));
        let file = std::fs::read_to_string(left.path().join("etc/file"));
        assert_eq!(file.unwrap(), "ours");
    }
}
