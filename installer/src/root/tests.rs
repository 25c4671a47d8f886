use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

fn root() -> (TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::new(folder.path()).unwrap();
    (folder, root)
}

#[test]
fn links_stay_in_the_root() {
    let (folder, root) = root();
    let here = root.folder().to_owned();
    fs::create_dir_all(folder.path().join("var/snap/7")).unwrap();
    fs::create_dir_all(folder.path().join("run")).unwrap();
    symlink("7", folder.path().join("var/snap/current")).unwrap();
    symlink("/run", folder.path().join("var/run")).unwrap();
    symlink("../../../../etc/passwd", folder.path().join("run/up")).unwrap();
    let place = |path: &str| root.place(Path::new(path)).unwrap();
    assert_eq!(
        place("/var/snap/current/args"),
        here.join("var/snap/7/args")
    );
    assert_eq!(place("/var/run/a.sock"), here.join("run/a.sock"));
    assert_eq!(place("/run/up"), here.join("etc/passwd"));
    assert_eq!(place("/../../etc"), here.join("etc"));
}

#[test]
fn links_in_a_circle_are_an_error() {
    let (folder, root) = root();
    symlink("b", folder.path().join("a")).unwrap();
    symlink("a", folder.path().join("b")).unwrap();
    let error = root.place(Path::new("/a")).unwrap_err();
    assert_eq!(error.to_string(), "failed to follow the links of /a");
}

#[test]
fn a_file_keeps_mode_and_owner_and_leaves_nothing_beside_it() {
    let (folder, root) = root();
    let path = Path::new("/file");
    fs::write(folder.path().join(".file.vmlet-new"), "left by a crash").unwrap();
    root.write(path, &Content::new("first", 0o640)).unwrap();
    let first = root.read(path).unwrap().unwrap();
    assert_eq!((first.text(), first.mode), (Some("first"), 0o640));
    root.write(path, &first.with_text("second".into())).unwrap();
    let second = root.read(path).unwrap().unwrap();
    assert_eq!((second.text(), second.mode), (Some("second"), 0o640));
    assert_eq!(second.owner, first.owner);
    assert_eq!(root.list(Path::new("/")).unwrap(), ["file"]);
}

#[test]
fn a_linked_file_is_replaced_where_it_is() {
    let (folder, root) = root();
    fs::write(folder.path().join("real"), "old").unwrap();
    symlink("/real", folder.path().join("link")).unwrap();
    let content = Content::new("new", 0o600);
    root.write(Path::new("/link"), &content).unwrap();
    assert_eq!(
        fs::read_to_string(folder.path().join("real")).unwrap(),
        "new"
    );
    assert!(folder.path().join("link").is_symlink());
}

#[test]
fn only_empty_folders_go() {
    let (folder, root) = root();
    let path = Path::new("/a/b/file");
    assert_eq!(
        root.missing_above(path).unwrap(),
        [Path::new("/a"), Path::new("/a/b")]
    );
    for folder in root.missing_above(path).unwrap() {
        root.create_folder(&folder).unwrap();
    }
    assert!(root.missing_above(path).unwrap().is_empty());
    fs::write(folder.path().join("a/b/file"), "").unwrap();
    assert!(!root.remove_folder(Path::new("/a/b")).unwrap());
    root.remove(path).unwrap();
    assert!(root.remove_folder(Path::new("/a/b")).unwrap());
    assert!(root.remove_folder(Path::new("/a/b")).unwrap());
}

#[test]
#[ignore = "needs root"]
fn a_power_cut_undoes_nothing_that_was_done() {
    let disk = testfs::StrictDisk::new().unwrap();
    let root = Root::new(&disk.path()).unwrap();
    let path = Path::new("/etc/file");
    root.create_folder(Path::new("/etc")).unwrap();
    for text in ["first", "second"] {
        root.write(path, &Content::new(text, 0o640)).unwrap();
        let left = disk.cut().unwrap();
        let read = fs::read_to_string(left.path().join("etc/file"));
        assert_eq!(read.unwrap(), text);
    }
    root.remove(path).unwrap();
    assert!(disk.names_after_cut("etc").unwrap().is_empty());
    assert_eq!(disk.names_after_cut("").unwrap(), ["etc"]);
    assert!(root.remove_folder(Path::new("/etc")).unwrap());
    assert!(disk.names_after_cut("").unwrap().is_empty());
}
