//! Tests of image archives, read back with `tar` and compared byte by byte.
//!
//! Invariant: nothing outside of a temporary folder is written.
//! Failure: the assertion shows what the archive holds.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Archived, Image, Tree, write};

fn tree(order: [usize; 3]) -> Tree {
    let mut tree = Tree::new();
    for step in order {
        match step {
            0 => tree.bytes("etc/passwd", 0o644, "root:x:0:0::/:/bin/sh\n"),
            1 => tree.link("bin/sh", "busybox"),
            _ => tree.folder("tmp", 0o1777),
        }
        .unwrap();
    }
    tree
}

fn build(tree: &Tree, file: &Path) -> String {
    let image = Image {
        name: "localhost/x:1",
        tree,
        config: json!({ "Entrypoint": ["/bin/sh"] }),
        level: 3,
    };
    write(&image, file).unwrap()
}

fn entries(mut input: impl Read) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut tar = tar::Archive::new(&mut input);
    for entry in tar.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mode = entry.header().mode().unwrap();
        let mut content = Vec::new();
        assert_eq!(entry.header().mtime().unwrap(), 0);
        entry.read_to_end(&mut content).unwrap();
        let path = entry.path().unwrap().display().to_string();
        found.insert(path, (mode, content));
    }
    found
}

fn hex(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unpacked(dir: &Path, layer: &[u8]) -> Vec<u8> {
    let file = dir.join("layer.zst");
    fs::write(&file, layer).unwrap();
    let mut zstd = crate::run::command("zstd");
    let output = zstd.args(["-dc"]).arg(&file).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

#[test]
fn the_same_files_give_the_same_archive_in_whatever_order_they_were_named() {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("one.tar");
    let two = dir.path().join("two.tar");
    let first = build(&tree([0, 1, 2]), &one);
    let second = build(&tree([2, 1, 0]), &two);
    assert_eq!(first, second);
    assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
    let mut other = tree([0, 1, 2]);
    other.bytes("etc/passwd", 0o600, "").unwrap();
    assert_ne!(build(&other, &two), first);
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 2, "scratch files are left");
}

#[test]
fn every_document_names_what_is_there_by_digest_and_size() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.tar");
    let digest = build(&tree([0, 1, 2]), &file);
    let archive = entries(File::open(&file).unwrap());
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap();
        let content = &archive[&format!("blobs/{}", digest.replace(':', "/"))].1;
        assert_eq!(descriptor["size"], content.len());
        assert_eq!(hex(content), digest.trim_start_matches("sha256:"));
        content.clone()
    };
    let index: Value = serde_json::from_slice(&archive["index.json"].1).unwrap();
    let entry = &index["manifests"][0];
    assert_eq!(entry["digest"], format!("sha256:{digest}"));
    assert_eq!(
        entry["annotations"]["io.containerd.image.name"],
        "localhost/x:1"
    );
    let manifest: Value = serde_json::from_slice(&blob(entry)).unwrap();
    let config: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
    assert_eq!(config["config"]["Entrypoint"][0], "/bin/sh");
    let layer = unpacked(dir.path(), &blob(&manifest["layers"][0]));
    assert_eq!(
        config["rootfs"]["diff_ids"][0],
        format!("sha256:{}", hex(&layer))
    );

    let files = entries(layer.as_slice());
    let names: Vec<&str> = files
        .keys()
        .map(|name| name.trim_end_matches('/'))
        .collect();
    assert_eq!(names, ["bin", "bin/sh", "etc", "etc/passwd", "tmp"]);
    assert_eq!(files["tmp"].0, 0o1777);
}

#[test]
fn a_path_that_leaves_the_image_is_refused() {
    for path in ["../etc/passwd", "/etc/passwd", "", "."] {
        assert!(Tree::new().bytes(path, 0o644, "").is_err(), "{path}");
    }
}

#[test]
fn an_archive_is_read_back_by_name_and_folder() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.tar");
    let digest = build(&tree([0, 1, 2]), &file);
    let image = Archived::open(&file).unwrap();
    assert_eq!(image.reference, "localhost/x:1");
    assert_eq!(image.digest, format!("sha256:{digest}"));
    let etc = image.folder(Path::new("etc")).unwrap();
    assert_eq!(etc.len(), 1);
    assert_eq!(etc["passwd"], b"root:x:0:0::/:/bin/sh\n");
    assert!(
        image.folder(Path::new("bin")).unwrap().is_empty(),
        "a link is no file"
    );
    fs::write(&file, "").unwrap();
    let error = format!("{:#}", Archived::open(&file).unwrap_err());
    assert!(error.contains("index.json"), "{error}");
}
