//! Volumes as kubelet makes them, and as a hostile pod would.
//!
//! Invariant: every file is below a scratch directory.
//! Failure: a test shows what was read, or the refusal.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rstest::rstest;

use super::*;

const POD: &str = "0d1f4ad2";

/// A volume of one pod.
struct Volume {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Volume {
    fn new(plugin: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(format!("pods/{POD}/volumes/{plugin}/seed"));
        fs::create_dir_all(&path).unwrap();
        Self { dir, path }
    }

    /// A Secret's volume with a version of the object.
    fn secret(version: &str, keys: &[(&str, &[u8])]) -> Self {
        let volume = Self::new("kubernetes.io~secret");
        volume.write(version, keys);
        volume
    }

    /// Replaces the content as kubelet does.
    fn write(&self, version: &str, keys: &[(&str, &[u8])]) {
        let directory = self.path.join(version);
        fs::create_dir(&directory).unwrap();
        for (key, value) in keys {
            fs::write(directory.join(key), value).unwrap();
            let link = self.path.join(key);
            if !link.is_symlink() {
                symlink(format!("..data/{key}"), link).unwrap();
            }
        }
        let new = self.path.join("..data_tmp");
        symlink(version, &new).unwrap();
        fs::rename(new, self.path.join(CURRENT)).unwrap();
    }

    fn read(&self) -> Result<Content, Unreadable> {
        read(self.path.to_str().unwrap(), POD, SourceKind::Secret)
    }
}

fn keys(content: &Content) -> Vec<(&str, &[u8])> {
    let all = content.0.iter();
    all.map(|(key, value)| (key.as_str(), value.as_slice()))
        .collect()
}

#[test]
fn the_current_version_of_an_object_is_read() {
    let volume = Volume::secret("..1", &[("user-data", b"old"), ("gone", b"x")]);
    assert_eq!(
        keys(&volume.read().unwrap()),
        [("gone", b"x".as_slice()), ("user-data", b"old")]
    );
    volume.write("..2", &[("user-data", b"new")]);
    assert_eq!(
        keys(&volume.read().unwrap()),
        [("user-data", b"new".as_slice())]
    );
}

#[rstest]
#[case::secret("kubernetes.io~secret", SourceKind::Secret, true)]
#[case::configmap("kubernetes.io~configmap", SourceKind::ConfigMap, true)]
#[case::projected("kubernetes.io~projected", SourceKind::Secret, true)]
#[case::other_object("kubernetes.io~configmap", SourceKind::Secret, false)]
#[case::empty_dir("kubernetes.io~empty-dir", SourceKind::Secret, false)]
#[case::claim("kubernetes.io~csi", SourceKind::ConfigMap, false)]
fn a_source_comes_from_a_volume_of_its_kind(
    #[case] plugin: &str,
    #[case] kind: SourceKind,
    #[case] is_read: bool,
) {
    let volume = Volume::new(plugin);
    volume.write("..1", &[("k", b"v")]);
    let found = read(volume.path.to_str().unwrap(), POD, kind);
    if is_read {
        assert_eq!(keys(&found.unwrap()), [("k", b"v".as_slice())]);
    } else {
        assert!(matches!(found, Err(Unreadable::NotAVolume(_))), "{found:?}");
    }
}

#[test]
fn a_volume_of_another_pod_or_of_the_node_is_refused() {
    let volume = Volume::secret("..1", &[("k", b"v")]);
    let path = volume.path.to_str().unwrap();
    let below = |rest: &str| format!("{path}/{rest}");
    for (host, pod) in [
        (path, "another"),
        (path, ""),
        ("/etc", POD),
        (&below("../seed"), POD),
        (&below("."), POD),
        (&below("..data"), POD),
        (path.trim_start_matches('/'), POD),
        (
            &format!(
                "{}/pods/{POD}/volume-subpaths/seed/vm/0",
                volume.dir.path().display()
            ),
            POD,
        ),
    ] {
        let found = read(host, pod, SourceKind::Secret);
        assert!(
            matches!(found, Err(Unreadable::NotAVolume(_))),
            "{host}: {found:?}"
        );
    }
}

#[test]
fn no_link_leads_out_of_the_volume() {
    let volume = Volume::secret("..1", &[("k", b"v")]);
    let outside = volume.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("k"), "hunter2").unwrap();
    // A key that is a link is no key.
    symlink(outside.join("k"), volume.path.join("..1/stolen")).unwrap();
    assert_eq!(keys(&volume.read().unwrap()), [("k", b"v".as_slice())]);
    // A version elsewhere is refused, by an absolute path and by one that leads upwards.
    for target in [
        outside.to_str().unwrap(),
        "../../../../../outside",
        "/proc/self/cwd",
    ] {
        fs::remove_file(volume.path.join(CURRENT)).unwrap();
        symlink(target, volume.path.join(CURRENT)).unwrap();
        let found = volume.read();
        assert!(
            matches!(found, Err(Unreadable::Io(_))),
            "{target}: {found:?}"
        );
    }
}

#[test]
fn what_is_no_file_is_no_key_and_does_not_block() {
    let volume = Volume::secret("..1", &[("k", b"v")]);
    fs::create_dir(volume.path.join("..1/directory")).unwrap();
    let pipe = volume.path.join("..1/pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert_eq!(keys(&volume.read().unwrap()), [("k", b"v".as_slice())]);
}

#[test]
fn an_object_that_is_too_large_is_refused() {
    let half = vec![b'x'; MOST_BYTES / 2];
    let volume = Volume::secret("..1", &[("a", &half), ("b", &half)]);
    assert_eq!(volume.read().unwrap().0.len(), 2);
    volume.write("..2", &[("a", &half), ("b", &half), ("c", b"x")]);
    assert!(matches!(volume.read(), Err(Unreadable::TooLarge)));
    let many: Vec<_> = (0..=MOST_KEYS).map(|n| format!("k{n}")).collect();
    let many: Vec<_> = many
        .iter()
        .map(|key| (key.as_str(), b"".as_slice()))
        .collect();
    volume.write("..3", &many);
    assert!(matches!(volume.read(), Err(Unreadable::TooLarge)));
}

#[test]
fn an_empty_object_has_no_keys_and_an_empty_volume_is_an_error() {
    assert_eq!(keys(&Volume::secret("..1", &[]).read().unwrap()), []);
    let empty = Volume::new("kubernetes.io~secret").read();
    assert!(matches!(empty, Err(Unreadable::Io(_))), "{empty:?}");
}
