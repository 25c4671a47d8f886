//! A small release: images with one package in their list, and programs that do nothing.
//!
//! Invariant: everything but images and programs is what a real release has.
//! Failure: names the file that differs or lacks something.

mod registry;

use serde_json::{Value, json};

use super::*;
use crate::{deb, oci, run};

const PACKAGE: &str = "Package: libc6\nVersion: 2.36-9+deb12u10\nArchitecture: amd64\n";

/// The archive of the image of this program in `folder`, with `content` in one of its files.
fn image(folder: &Path, program: &str, tag: &str, content: &str) -> PathBuf {
    let mut tree = oci::Tree::new();
    tree.bytes("etc/hello", 0o644, content).unwrap();
    let status = Path::new(crate::node_image::STATUS).join("libc6");
    tree.bytes(status, 0o644, PACKAGE).unwrap();
    let image = oci::Image {
        name: &format!("localhost/vmlet-{program}:{tag}"),
        tree: &tree,
        config: json!({}),
        level: 1,
    };
    let file = folder.join(format!("{program}.tar"));
    oci::write(&image, &file).unwrap();
    file
}

/// The parts of a release, built in `folder`.
fn parts(folder: &Path, content: &str) -> Parts {
    let commit = Commit::read().unwrap();
    let version = Version::snapshot("0.2.0", &commit);
    let built = folder.join("built");
    fs::create_dir_all(&built).unwrap();
    let program = built.join("vmletctl");
    copy(Path::new("/bin/true"), &program, 0o755).unwrap();
    let parts = deb::Built {
        programs: Some(&built),
        agent: None,
    };
    let deb = deb::build(&deb::VMLETCTL, &version.of_debian(), parts, folder).unwrap();
    let image = |program| image(folder, program, &version.to_string(), content);
    Parts {
        images: ["node", "controller", "agent"].map(image).into(),
        version,
        commit,
        notes: "### Added\n\n- A thing.".to_owned(),
        debug: true,
        packages: Lock::pinned().unwrap(),
        debs: vec![deb],
        programs: vec![program],
    }
}

fn document(release: &Path, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(release.join(name)).unwrap()).unwrap()
}

#[test]
fn two_builds_of_a_commit_have_the_same_bytes_and_a_change_is_named() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = dirs.each_ref().map(|dir| dir.path().join("release"));
    parts(dirs[0].path(), "hello").write(&first, None).unwrap();
    parts(dirs[1].path(), "hello").write(&second, None).unwrap();
    assert_eq!(compare(&first, &second).unwrap(), [""; 0]);

    let changed = parts(dirs[1].path(), "changed");
    changed.write(&second, None).unwrap();
    let version = &changed.version;
    let differing = [
        format!("images/vmlet-agent-{version}.tar"),
        format!("images/vmlet-controller-{version}.tar"),
        format!("images/vmlet-node-{version}.tar"),
        "images.json".to_owned(),
        "sbom.cdx.json".to_owned(),
        format!("vmlet-{version}.tgz"),
        format!("vmlet-manifests-{version}.tgz"),
    ];
    let expected = differing.map(|name| format!("{name}: differs"));
    assert_eq!(compare(&first, &second).unwrap(), expected);
}

#[test]
fn chart_and_manifests_install_the_images_of_the_release_by_their_digests() {
    let dir = tempfile::tempdir().unwrap();
    let parts = parts(dir.path(), "hello");
    let release = dir.path().join("release");
    parts.write(&release, None).unwrap();
    let listed = document(&release, "images.json");
    let listed = listed["images"].as_array().unwrap();
    let digests = listed.iter().map(|image| {
        let digest = image["digest"].as_str().unwrap();
        let archive = release.join(image["file"].as_str().unwrap());
        assert_eq!(Archived::open(&archive).unwrap().digest, digest);
        digest
    });
    let digests: Vec<_> = digests.collect();
    for (archive, file, images) in [
        ("vmlet", "vmlet/values.yaml", &digests[..]),
        ("vmlet-manifests", "node/daemonset.yaml", &digests[..1]),
        (
            "vmlet-manifests",
            "controller/deployment.yaml",
            &digests[1..2],
        ),
        ("vmlet-manifests", "agent/daemonset.yaml", &digests[2..]),
        ("vmlet-manifests", "kustomization.yaml", &digests[..]),
        (
            "vmlet-manifests",
            "installer/kustomization.yaml",
            &digests[..1],
        ),
    ] {
        let name = format!("{archive}-{}", parts.version);
        let file = match archive {
            "vmlet" => file.to_owned(),
            _ => format!("{name}/{file}"),
        };
        let mut tar = run::command("tar");
        tar.args(["--extract", "--to-stdout", "--gzip", "--file"]);
        let text = run::output(tar.arg(release.join(name + ".tgz")).arg(&file)).unwrap();
        for digest in images {
            assert!(text.contains(digest), "{file}: {text}");
        }
    }
}

#[test]
fn the_bill_of_materials_has_the_packages_of_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let release = dir.path().join("release");
    parts(dir.path(), "hello").write(&release, None).unwrap();
    let document = document(&release, SBOM);
    let purl = "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12";
    let components = document["components"].as_array().unwrap();
    let names = |name: &str| {
        components
            .iter()
            .filter(|found| found["name"] == name)
            .count()
    };
    assert!(components.iter().any(|found| found["purl"] == purl));
    assert_eq!(names("localhost/vmlet-node"), 1);
    assert_eq!(names("tokio"), 1);
    let dependencies = document["dependencies"].as_array().unwrap();
    let release = dependencies
        .iter()
        .find(|found| found["ref"] == "release")
        .unwrap();
    assert_eq!(release["dependsOn"].as_array().unwrap().len(), 13);
    let image = dependencies.iter().find(|found| {
        let reference = found["ref"].as_str().unwrap();
        reference.starts_with("pkg:oci/vmlet-node@sha256:")
    });
    assert_eq!(image.unwrap()["dependsOn"], json!([purl]));
}

#[test]
fn a_folder_that_is_no_release_is_left_alone_and_a_release_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let parts = parts(dir.path(), "hello");
    let folder = dir.path().join("documents");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("letter"), "dear").unwrap();
    let error = parts.write(&folder, None).unwrap_err().to_string();
    assert!(error.contains("is no release"), "{error}");
    assert_eq!(fs::read_to_string(folder.join("letter")).unwrap(), "dear");

    fs::write(folder.join(sums::FILE), "").unwrap();
    parts.write(&folder, None).unwrap();
    assert!(!folder.join("letter").exists());
    assert!(folder.join(NOTES).exists());
}
