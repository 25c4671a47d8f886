//! Images read back.
//!
//! Invariant: every test reads with something else than the writer.
//! Failure: a message with what was read.

use std::io::Cursor;
use std::process::Command;

use hadris_iso::read::IsoImage;

use super::*;

fn three(user_data: &[u8]) -> Vec<File> {
    let file = |name: &str, content: &[u8]| File {
        name: name.to_owned(),
        content: content.to_vec(),
    };
    vec![
        file("meta-data", b"{\"instance-id\": \"a.b\"}"),
        file("user-data", user_data),
        file("network-config", b"version: 2\n"),
    ]
}

/// Names and contents of the files of the top directory of an image, sorted.
fn files(image: Vec<u8>) -> Vec<(String, Vec<u8>)> {
    let iso = IsoImage::open(Cursor::new(image)).unwrap();
    let root = iso.root_dir();
    let folder = root.iter(&iso);
    let mut found = Vec::new();
    for entry in folder.entries() {
        let entry = entry.unwrap();
        if !entry.is_special() && !entry.is_directory() {
            let name = entry.display_name().into_owned();
            found.push((name, iso.read_file(&entry).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn files_of_directories_are_found_by_their_paths() {
    let names = [
        "openstack/latest/meta_data.json",
        "openstack/x",
        "vmlet/files/10",
    ];
    let file = |name: &&str| File {
        name: (*name).to_owned(),
        content: name.as_bytes().to_vec(),
    };
    let image = image(CONFIG_DRIVE, names.iter().map(file).collect()).unwrap();
    let iso = IsoImage::open(Cursor::new(image)).unwrap();
    for name in names {
        let entry = iso.find_path(name).unwrap().expect(name);
        assert_eq!(iso.read_file(&entry).unwrap(), name.as_bytes());
    }
}

#[test]
fn every_file_is_found_under_its_name_with_its_content() {
    let large = vec![b'x'; 3 * BLOCK + 1];
    let image = image(NO_CLOUD, three(&large)).unwrap();
    assert_eq!(image.len() % BLOCK, 0);
    let mut wanted: Vec<_> = three(&large)
        .into_iter()
        .map(|file| (file.name, file.content))
        .collect();
    wanted.sort();
    assert_eq!(files(image), wanted);
}

#[test]
fn other_programs_see_the_label_of_cloud_init() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seed.iso");
    std::fs::write(&path, image(NO_CLOUD, three(b"#cloud-config\n")).unwrap()).unwrap();
    let output = Command::new("/usr/sbin/blkid")
        .args(["-p", "-o", "export"])
        .arg(&path)
        .output()
        .unwrap();
    let reported = String::from_utf8_lossy(&output.stdout);
    assert!(reported.contains("LABEL=cidata"), "{reported}");
    assert!(reported.contains("TYPE=iso9660"), "{reported}");
}

#[test]
fn an_empty_file_is_a_file() {
    let image = image(NO_CLOUD, three(b"")).unwrap();
    assert_eq!(files(image).len(), 3);
}

#[test]
fn too_much_is_refused_with_the_limit() {
    let error = image(NO_CLOUD, three(&vec![0; MAX_BYTES])).unwrap_err();
    assert!(
        error.to_string().contains(&MAX_BYTES.to_string()),
        "{error}"
    );
}

#[test]
fn contents_do_not_show_in_debug_output() {
    let shown = format!("{:?}", three(b"hunter2"));
    assert!(!shown.contains("hunter2"), "{shown}");
}
