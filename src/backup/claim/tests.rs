//! Which claims a machine reaches, and what is opened of them.
//!
//! Invariant: directories are real; a list stands for the pods of the node.
//! Failure: the path that was taken, or the error.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::backup::{Error, Targets};

const CLAIM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b01";
const OTHER: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b02";
const POD: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b03";

/// Pods of the namespace `ns` with the claim [`CLAIM`].
#[derive(Debug)]
struct Pods(MountPoint);

impl Claims for Pods {
    fn mounted(&self, claim: Uuid, namespace: &str) -> Option<MountPoint> {
        let is_it = namespace == "ns" && claim.to_string() == CLAIM;
        is_it.then(|| self.0.clone())
    }
}

fn point(root: &Path, path: &str) -> Option<MountPoint> {
    MountPoint::of_volume(root, path, POD)
}

#[test]
fn a_claim_is_named_by_its_uid_in_one_spelling() {
    let read = |text: &str| {
        text.parse::<ClaimTarget>()
            .map(|claim| claim.uid().to_string())
    };
    assert_eq!(read(&format!("claim:{CLAIM}")), Ok(CLAIM.to_owned()));
    let upper = format!("claim:{}", CLAIM.to_uppercase());
    let path = format!("claim:../{CLAIM}");
    for odd in ["", "claim", "claim:", CLAIM, &upper, &path, "nfs"] {
        assert_eq!(read(odd), Err(()), "{odd}");
    }
}

#[test]
fn a_mount_is_that_of_a_volume_of_the_pod() {
    let root = Path::new("/node");
    let volume = format!("/var/lib/kubelet/pods/{POD}/volumes/kubernetes.io~csi/pvc-1/mount");
    let found = point(root, &volume).unwrap();
    assert_eq!(found.pods, Path::new("/node/var/lib/kubelet/pods"));
    let below = format!("{POD}/volumes/kubernetes.io~csi/pvc-1/mount");
    assert_eq!(found.mount, Path::new(&below));
    let of = |pod: &str, rest: &str| format!("/var/lib/kubelet/pods/{pod}/{rest}");
    for odd in [
        "/etc".to_owned(),
        "/mnt/claim".to_owned(),
        of(OTHER, "volumes/kubernetes.io~csi/pvc-1/mount"),
        of(POD, "volume-subpaths/pvc-1/vm/0"),
        of(POD, "volumes/kubernetes.io~empty-dir/data"),
        of(POD, "volumes/kubernetes.io~secret/data"),
        of(POD, "volumes/kubernetes.io~csi"),
        of(POD, "volumes/kubernetes.io~csi/../../etc"),
        of(POD, "volumes//etc"),
    ] {
        assert_eq!(point(root, &odd), None, "{odd}");
    }
}

#[test]
fn a_claim_is_a_target_for_machines_of_its_namespace_while_a_pod_has_it() {
    let place = MountPoint {
        pods: PathBuf::from("/absent"),
        mount: PathBuf::from(POD),
    };
    let vm = OTHER.parse().unwrap();
    let claim = format!("claim:{CLAIM}");
    let without = Targets::default();
    let with = Targets::default().with_claims(Arc::new(Pods(place)));
    with.find(&claim, vm, "ns/vm").unwrap();
    let another = format!("claim:{OTHER}");
    for (targets, name, machine) in [
        (&without, &claim, "ns/vm"),
        (&with, &claim, "other/vm"),
        (&with, &claim, "vm"),
        (&with, &another, "ns/vm"),
    ] {
        let refused = targets.find(name, vm, machine).unwrap_err();
        assert!(
            matches!(refused, Error::NotMounted { .. }) && refused.is_transient(),
            "{name} {machine}: {refused}"
        );
    }
}

/// A pod has each claim.
#[derive(Debug)]
struct All;

impl Claims for All {
    fn mounted(&self, _: Uuid, _: &str) -> Option<MountPoint> {
        Some(MountPoint {
            pods: PathBuf::from("/absent"),
            mount: PathBuf::from(POD),
        })
    }
}

#[test]
fn claims_have_threads_of_their_own_and_a_bound_together() {
    let targets = ClaimTargets::new(Arc::new(All));
    let find = |uid: &str| {
        let claim = format!("claim:{uid}").parse().unwrap();
        targets.find(claim, "ns").unwrap()
    };
    let one = find(CLAIM);
    let at_work = one.threads.try_acquire().unwrap();
    let other = find(OTHER);
    assert!(!Arc::ptr_eq(&one.threads, &other.threads));
    assert!(Arc::ptr_eq(&one.threads, &find(CLAIM).threads));
    drop(at_work);
    let shared = one.shared.unwrap();
    assert!(Arc::ptr_eq(&shared, &other.shared.unwrap()));
    assert_eq!(shared.available_permits(), MOST);
}

#[test]
fn a_link_on_the_way_and_a_directory_that_is_no_mount_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let pods = scratch.path().join("pods");
    let open = |mount: &str| {
        let place = MountPoint {
            pods: pods.clone(),
            mount: PathBuf::from(mount),
        };
        Root::Claim(place).open()
    };
    fs::create_dir_all(pods.join("pod/plugin/plain")).unwrap();
    symlink("/proc", pods.join("pod/plugin/link")).unwrap();
    symlink("/", pods.join("root")).unwrap();
    for link in ["pod/plugin/link", "root/proc"] {
        let refused = open(link).unwrap_err();
        // A verification that calls the backup damaged would be wrong.
        let is_no_mount = matches!(refused, Error::NoMount(_));
        assert!(is_no_mount && refused.is_transient(), "{link}: {refused}");
    }
    let plain = open("pod/plugin/plain").unwrap_err();
    assert!(matches!(plain, Error::NoMount(_)) && plain.is_transient());
    let absent = open("pod/plugin/absent").unwrap_err();
    assert!(matches!(absent, Error::Files(_)), "{absent}");
    // What every computer has mounted.
    let mounted = MountPoint {
        pods: PathBuf::from("/"),
        mount: PathBuf::from("proc"),
    };
    Root::Claim(mounted).open().unwrap();
}
