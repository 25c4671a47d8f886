use std::fs;

use tempfile::TempDir;

use super::*;

/// A root with these files.
fn node(files: &[&str]) -> (TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let root = Root::new(folder.path()).unwrap();
    (folder, root)
}

const KUBEADM: [&str; 2] = [
    "var/lib/kubelet/config.yaml",
    "usr/lib/systemd/system/kubelet.service",
];

const RKE2: [&str; 3] = [
    "var/lib/rancher/rke2/agent/kubelet.kubeconfig",
    "usr/local/lib/systemd/system/rke2-agent.service",
    "usr/local/lib/systemd/system/rke2-server.service",
];

#[test]
fn files_and_a_unit_make_a_platform() {
    let (_folder, root) = node(&KUBEADM);
    let found = find(&root, None).unwrap();
    assert_eq!(found.platform.name, Name::Kubeadm);
    assert_eq!(found.service, "kubelet.service");
    // k3s and RKE2 have /var/lib/kubelet too, but no unit of kubelet.
    let (_folder, root) = node(&KUBEADM[..1]);
    let error = find(&root, None).unwrap_err().to_string();
    assert!(
        error.contains("none of kubeadm") && error.contains("--root"),
        "{error}"
    );
}

#[test]
fn of_two_platforms_the_named_one_counts() {
    let (_folder, root) = node(
        &[
            &KUBEADM[..],
            &[
                "var/lib/rancher/k3s/agent/x",
                "etc/systemd/system/k3s.service",
            ],
        ]
        .concat(),
    );
    let error = find(&root, None).unwrap_err().to_string();
    assert!(
        error.contains("kubeadm, k3s") && error.contains("--platform"),
        "{error}"
    );
    assert_eq!(find(&root, Some(Name::K3s)).unwrap().service, "k3s.service");
    let error = find(&root, Some(Name::K0s)).unwrap_err().to_string();
    assert!(error.contains("/var/lib/k0s/kubelet"), "{error}");
}

#[test]
fn of_two_units_the_enabled_one_counts() {
    let (_folder, root) = node(&RKE2);
    let error = find(&root, None).unwrap_err().to_string();
    assert!(
        error.contains("rke2-agent.service, rke2-server.service"),
        "{error}"
    );
    let wants = "etc/systemd/system/multi-user.target.wants/rke2-server.service";
    let (_folder, root) = node(&[&RKE2[..], &[wants]].concat());
    assert_eq!(find(&root, None).unwrap().service, "rke2-server.service");
}

#[test]
fn every_name_is_that_of_its_platform() {
    for platform in &PLATFORMS {
        assert_eq!(by_name(platform.name).name, platform.name);
        let parsed = <Name as clap::ValueEnum>::from_str(&title(platform.name), false);
        assert_eq!(parsed, Ok(platform.name));
    }
}
