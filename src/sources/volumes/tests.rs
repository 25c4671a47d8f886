//! Mounts as kubelet makes them, and as a hostile pod would.
//!
//! Invariant: every file is below a scratch directory.
//! Failure: a test shows what was read, or the refusal.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rstest::rstest;

use super::*;

const POD: &str = "0d1f4ad2";

/// kubelet's directory of one pod.
struct Pod(tempfile::TempDir);

impl Pod {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(format!("pods/{POD}/{below}"))
    }

    /// A volume with a version of an object, as kubelet lays it out.
    fn volume(&self, plugin: &str, keys: &[(&str, &[u8], u32)]) -> String {
        let volume = self.path(&format!("volumes/{plugin}/any"));
        for (key, value, mode) in keys {
            let file = volume.join("..1").join(key);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, value).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(*mode)).unwrap();
            let first = key.split('/').next().unwrap();
            let link = volume.join(first);
            if !link.is_symlink() {
                symlink(format!("..data/{first}"), link).unwrap();
            }
        }
        symlink("..1", volume.join(CURRENT)).unwrap();
        volume.to_str().unwrap().to_owned()
    }

    fn sub_path(&self) -> PathBuf {
        let path = self.path("volume-subpaths/conf/vm/0");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}

fn read(host: &str, inside: &str) -> Result<Vec<GuestFile>, VolumeError> {
    let mut files = Files::default();
    files.add(host, POD, inside)?;
    Ok(files.into_files())
}

fn file(path: &str, mode: u32, content: &[u8]) -> GuestFile {
    GuestFile {
        path: path.to_owned(),
        mode,
        content: content.to_vec(),
    }
}

#[rstest]
#[case("kubernetes.io~configmap")]
#[case("kubernetes.io~secret")]
#[case("kubernetes.io~projected")]
#[case("kubernetes.io~downward-api")]
fn each_key_of_a_volume_is_one_file_with_its_mode(#[case] plugin: &str) {
    let pod = Pod::new();
    let keys: [(&str, &[u8], u32); 2] = [("b", b"\xff", 0o400), ("a/c", b"deep", 0o644)];
    let host = pod.volume(plugin, &keys);
    let wanted = [
        file("/conf/a/c", 0o644, b"deep"),
        file("/conf/b", 0o400, b"\xff"),
    ];
    assert!(has_files(&host, POD));
    assert_eq!(read(&host, "/conf/").unwrap(), wanted);
}

#[test]
fn a_sub_path_is_one_file() {
    let pod = Pod::new();
    let path = pod.sub_path();
    fs::write(&path, "one").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let host = path.to_str().unwrap();
    assert!(has_files(host, POD));
    let wanted = [file("/etc/app.conf", 0o640, b"one")];
    assert_eq!(read(host, "/etc/app.conf").unwrap(), wanted);
}

#[test]
fn what_is_no_file_of_the_pod_is_not_read() {
    let pod = Pod::new();
    let object = pod.volume("kubernetes.io~secret", &[("k", b"v", 0o600)]);
    let claim = pod.volume("kubernetes.io~csi", &[("k", b"v", 0o600)]);
    let directory = pod.sub_path();
    fs::create_dir(&directory).unwrap();
    let link = directory.with_file_name("1");
    symlink(format!("{object}/k"), &link).unwrap();
    let hosts = pod.path("etc-hosts");
    fs::write(&hosts, "").unwrap();
    for (host, uid) in [
        (object.as_str(), "another"),
        (object.as_str(), ""),
        (claim.as_str(), POD),
        (directory.to_str().unwrap(), POD),
        (link.to_str().unwrap(), POD),
        (hosts.to_str().unwrap(), POD),
        ("/etc/passwd", POD),
        (&format!("{object}/../any"), POD),
        (&format!("{object}/..data"), POD),
    ] {
        assert!(!has_files(host, uid), "{host}");
        let mut files = Files::default();
        files.add(host, uid, "/conf").unwrap();
        assert_eq!(files.into_files(), [], "{host}");
    }
}

#[test]
fn no_link_leads_out_of_a_volume() {
    let pod = Pod::new();
    let host = pod.volume("kubernetes.io~secret", &[("k", b"v", 0o600)]);
    let volume = PathBuf::from(&host);
    let outside = pod.0.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("k"), "hunter2").unwrap();
    symlink(outside.join("k"), volume.join("..1/file")).unwrap();
    symlink(&outside, volume.join("..1/directory")).unwrap();
    assert_eq!(
        read(&host, "/conf").unwrap(),
        [file("/conf/k", 0o600, b"v")]
    );
    fs::remove_file(volume.join(CURRENT)).unwrap();
    symlink(&outside, volume.join(CURRENT)).unwrap();
    let refused = read(&host, "/conf");
    assert!(matches!(refused, Err(VolumeError::Io(_))), "{refused:?}");
}

#[test]
fn too_much_is_refused_by_name() {
    let pod = Pod::new();
    let large = vec![b'x'; LARGEST_FILE + 1];
    let keys: [(&str, &[u8], u32); 2] = [("large", &large, 0o644), ("small", b"", 0o644)];
    let host = pod.volume("kubernetes.io~configmap", &keys);
    let refused = read(&host, "/conf").unwrap_err().to_string();
    assert!(
        refused.starts_with("/conf/large has more than 1048576 bytes"),
        "{refused}"
    );

    let other = Pod::new();
    let names: Vec<_> = (0..9).map(|n| format!("k{n}")).collect();
    let whole = &large[1..];
    let keys: Vec<_> = names.iter().map(|k| (k.as_str(), whole, 0o644)).collect();
    let host = other.volume("kubernetes.io~configmap", &keys[..8]);
    assert_eq!(read(&host, "/conf").unwrap().len(), 8);
    let host = Pod::new();
    let host_path = host.volume("kubernetes.io~configmap", &keys);
    let refused = read(&host_path, "/conf");
    assert!(matches!(refused, Err(VolumeError::TooLarge)), "{refused:?}");
}

#[test]
fn a_path_that_a_guest_cannot_have_is_refused() {
    let pod = Pod::new();
    let host = pod.volume("kubernetes.io~configmap", &[("k", b"v", 0o644)]);
    for inside in ["conf", "/a\nb"] {
        let refused = read(&host, inside);
        assert!(
            matches!(refused, Err(VolumeError::Name { .. })),
            "{refused:?}"
        );
    }
}
