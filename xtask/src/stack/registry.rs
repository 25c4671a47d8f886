//! The registries of a stack: one without login, one with TLS and a password, both with the same
//! images.
//!
//! Invariant: they listen on the loopback address of the stack, and serve what their storage had
//! when the stack came up. The daemon knows both, and uses the first as mirror of the registries
//! whose images critest pulls.
//! Failure: names the file that cannot be written.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use rcgen::{CertificateParams, KeyPair};

use super::Layout;
use crate::oci::{Storage, Tree};
use crate::{run, workspace};

/// Where the registry without login listens.
pub(crate) const OPEN: &str = "127.0.0.1:5000";
/// Where the registry with TLS and login listens.
pub(crate) const LOGIN: &str = "127.0.0.1:5443";
/// Who may log in: user `me`, password `hush`, by bcrypt.
const PASSWORDS: &str = "me:$2y$05$HvOLRZcxbP00KfvSUj9ApePP.HNxWljXK5AOoYBDPRfzRnGtmrg4C\n";
/// Registries that the first one is a mirror of.
const MIRRORED: [&str; 3] = ["gcr.io", "k8s.gcr.io", "registry.k8s.io"];

/// Container disks that critest pulls, and does not boot: repository, tag, content, user.
const CRITEST: &[(&str, &str, &str, &str)] = &[
    ("test-image-latest", "latest", "latest", ""),
    ("test-image-tag", "test", "tag", ""),
    ("test-image-tag", "all", "tag", ""),
    ("test-image-digest", "latest", "digest", ""),
    ("test-image-1", "latest", "1", ""),
    ("test-image-2", "latest", "2", ""),
    ("test-image-3", "latest", "3", ""),
    ("test-image-tags", "1", "tags", ""),
    ("test-image-tags", "2", "tags", ""),
    ("test-image-tags", "3", "tags", ""),
    ("test-image-user-uid", "latest", "uid", "1002"),
    ("test-image-user-username", "latest", "username", "www-data"),
    (
        "test-image-user-uid-group",
        "latest",
        "uid-group",
        "1003:users",
    ),
    (
        "test-image-user-username-group",
        "latest",
        "username-group",
        "www-data:100",
    ),
];

/// Bytes of a cluster of a qcow2 file.
const CLUSTER: usize = 65_536;

/// Sectors of a disk that nothing boots.
const SECTORS: usize = 128;

/// Writes images and configuration below the stack's directory.
pub(crate) fn install(layout: &Layout) -> Result<()> {
    let storage = Storage::create(&layout.path("registry/storage"))?;
    let guest = workspace::guest_image();
    let mut disk = Tree::new();
    disk.copy("disk/hello.qcow2", 0o644, &guest)?;
    storage.image("disks/hello", "1", &disk, "")?;
    storage.artifact("disks/artifact", "1", &guest)?;
    golden(&storage, &guest)?;
    storage.image("pause", "3.9", &small("pause")?, "65535:65535")?;
    for (name, tag, content, user) in CRITEST {
        let name = format!("k8s-staging-cri-tools/{name}");
        storage.image(&name, tag, &small(content)?, user)?;
    }
    let mut shell = Tree::new();
    shell.bytes("bin/sh", 0o755, "#!")?;
    storage.image("container-image", "1", &shell, "")?;
    storage.finish()?;

    let key = KeyPair::generate().context("the registry's key")?;
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?;
    let certificate = certificate
        .self_signed(&key)
        .context("the registry's certificate")?;
    write(layout, "registry/tls.crt", &certificate.pem())?;
    write(layout, "registry/tls.key", &key.serialize_pem())?;
    write(layout, "registry/passwords", PASSWORDS)?;
    write(
        layout,
        "registry/open.yml",
        &configuration(layout, OPEN, ""),
    )?;
    let path = |name: &str| layout.path(name).display().to_string();
    let secured = format!(
        "  tls:\n    certificate: {}\n    key: {}\nauth:\n  htpasswd:\n    realm: vmlet\n    path: {}\n",
        path("registry/tls.crt"),
        path("registry/tls.key"),
        path("registry/passwords"),
    );
    let login = configuration(layout, LOGIN, &secured);
    write(layout, "registry/login.yml", &login)?;
    hosts(layout, &certificate.pem())
}

/// Two versions of a disk, and the tag `stable`, which means the first: a test moves it.
fn golden(storage: &Storage, guest: &Path) -> Result<()> {
    let first = fs::read(guest).with_context(|| format!("read {}", guest.display()))?;
    for tag in ["1", "2", "stable"] {
        let mut disk = first.clone();
        if tag == "2" {
            // Behind the last cluster: another file, and the same guest.
            disk.resize(disk.len().next_multiple_of(CLUSTER) + CLUSTER, 0);
        }
        let mut tree = Tree::new();
        tree.bytes("disk/golden.qcow2", 0o644, disk)?;
        storage.image("disks/golden", tag, &tree, "")?;
    }
    Ok(())
}

/// The command line of a registry.
pub(crate) fn command(layout: &Layout, configuration: &str) -> Command {
    let mut command = run::command("docker-registry");
    command
        .arg("serve")
        .arg(layout.path("registry").join(configuration));
    command
}

/// Whether a registry answers, from inside the stack's network.
pub(crate) fn answers(layout: &Layout, address: &'static str) -> bool {
    let netns = layout.netns_path();
    let connect = move || -> Result<TcpStream> {
        super::netns::enter(&netns)?;
        Ok(TcpStream::connect(address)?)
    };
    // A thread of its own leaves the namespace with its end.
    std::thread::spawn(connect)
        .join()
        .is_ok_and(|connected| connected.is_ok())
}

/// A disk with a boot signature, as the only file of a container disk.
fn small(content: &str) -> Result<Tree> {
    let mut disk = vec![0; SECTORS * 512];
    for (byte, letter) in disk.iter_mut().zip(content.bytes()) {
        *byte = letter;
    }
    if let Some(signature) = disk.get_mut(510..512) {
        signature.copy_from_slice(&[0x55, 0xaa]);
    }
    let mut tree = Tree::new();
    tree.bytes("disk/disk.img", 0o644, disk)?;
    Ok(tree)
}

fn configuration(layout: &Layout, address: &str, more: &str) -> String {
    format!(
        "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {}\n  \
         maintenance:\n    readonly:\n      enabled: true\nhttp:\n  addr: {address}\n{more}",
        layout.path("registry/storage").display()
    )
}

/// What the daemon knows of the registries.
fn hosts(layout: &Layout, authority: &str) -> Result<()> {
    let open = format!("server = \"http://{OPEN}\"\n");
    write(layout, &format!("registry/hosts/{OPEN}/hosts.toml"), &open)?;
    write(layout, &format!("registry/hosts/{LOGIN}/ca.crt"), authority)?;
    for host in MIRRORED {
        let mirror = format!("[host.\"http://{OPEN}\"]\n");
        write(
            layout,
            &format!("registry/hosts/{host}/hosts.toml"),
            &mirror,
        )?;
    }
    Ok(())
}

fn write(layout: &Layout, below: &str, text: &str) -> Result<()> {
    let path = layout.path(below);
    let folder = path.parent().unwrap_or_else(|| Path::new("/"));
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}
