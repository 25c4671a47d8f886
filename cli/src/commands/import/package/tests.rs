use std::os::unix::fs::symlink;

use super::*;

fn content(part: Part) -> String {
    let mut text = String::new();
    let mut file = part.file;
    file.seek(SeekFrom::Start(part.offset)).unwrap();
    file.take(part.size).read_to_string(&mut text).unwrap();
    text
}

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

fn ova(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.OVA");
    let mut builder = tar::Builder::new(File::create(&path).unwrap());
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        builder
            .append_data(&mut header, name, content.as_bytes())
            .unwrap();
    }
    builder.finish().unwrap();
    (dir, path)
}

/// Of `abc`.
const SUM: &str = "SHA1(a.ovf)= a9993e364706816aba3e25717850c26c9cd0d89d\n";

#[test]
fn a_package_is_read_from_a_directory_and_from_an_archive() {
    let files = [
        ("a.ovf", "abc"),
        ("a.mf", SUM),
        ("a.cert", "c"),
        ("a disk.vmdk", "d"),
    ];
    let dir = directory(&files);
    let (_dir, archive) = ova(&files);
    for path in [dir.path().join("a.ovf"), archive] {
        let package = Package::open(&path).unwrap();
        assert_eq!(package.descriptor, "abc");
        assert!(package.is_signed && package.manifest.is_some());
        for reference in ["a disk.vmdk", "a%20disk.vmdk"] {
            assert_eq!(content(package.file(reference).unwrap()), "d");
        }
        let missing = package.file("b%2").unwrap_err();
        assert!(matches!(missing, PackageError::Missing(_)), "{missing}");
    }
}

#[test]
fn only_files_beside_the_descriptor_are_opened() {
    let dir = directory(&[("a.ovf", "abc")]);
    symlink("/etc/passwd", dir.path().join("disk")).unwrap();
    let package = Package::open(&dir.path().join("a.ovf")).unwrap();
    for reference in [
        "../a.ovf",
        "/etc/passwd",
        "%2e%2e/a.ovf",
        "%2Fetc%2Fpasswd",
        "http://example.com/disk",
        "..",
        "",
    ] {
        let refused = package.file(reference).unwrap_err();
        assert!(matches!(refused, PackageError::Reference(_)), "{refused}");
    }
    let link = package.file("disk").unwrap_err();
    assert!(matches!(link, PackageError::NoFile(_)), "{link}");
    symlink("a.ovf", dir.path().join("a.cert")).unwrap();
    assert!(Package::open(&dir.path().join("a.ovf")).is_err());
}

#[test]
fn a_changed_descriptor_and_a_strange_file_are_refused() {
    let dir = directory(&[
        ("a.ovf", "abd"),
        ("a.mf", SUM),
        ("b.ovf", "x"),
        ("c.iso", ""),
    ]);
    let refused = |name: &str| Package::open(&dir.path().join(name)).unwrap_err();
    assert!(matches!(
        refused("a.ovf"),
        PackageError::Manifest(ManifestError::Differs(_))
    ));
    assert!(matches!(refused("c.iso"), PackageError::Name(_)));
    assert!(matches!(refused("d.ova"), PackageError::NoFile(_)));
    let (_dir, two) = ova(&[("a.ovf", ""), ("b.ovf", "")]);
    assert!(matches!(
        Package::open(&two),
        Err(PackageError::Descriptors(2))
    ));
    let long = " ".repeat(usize::try_from(DESCRIPTOR).unwrap() + 1);
    std::fs::write(dir.path().join("b.ovf"), long).unwrap();
    assert!(matches!(refused("b.ovf"), PackageError::Long(..)));
    std::fs::write(dir.path().join("b.ovf"), [0xff]).unwrap();
    assert!(matches!(refused("b.ovf"), PackageError::Text(_)));
}
