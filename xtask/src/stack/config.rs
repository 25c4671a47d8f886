//! Writes the configuration of everything in a stack, and the environment for people and tests.
//!
//! Invariant: this is the only place that knows the spelling of a setting.
//! Failure: a file that cannot be written is named.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::User;
use serde_json::json;

use super::cluster::{self, Node};
use super::layout::{Layout, NODE_SOCKET, QEMU_USER};
use super::netns::POD_BRIDGE;
use super::record::Record;
use crate::{image, pod_images, run, workspace};

/// The image that every stack can pull and boot, less its tag.
const IMAGE: &str = "vmlet.dev/hello";
/// Name of the guest image that UEFI alone boots.
const UEFI: &str = "vmlet.dev/uefi";
/// The guest image with the kernel for all machines; a stack can pull it if it was built.
const GENERIC: &str = "vmlet.dev/generic";
/// The image of Debian; a stack can pull it if it was built.
const DEBIAN: &str = "vmlet.dev/debian";
/// The name of the target of backups that every stack has.
const BACKUP_TARGET: &str = "local";
/// What libvirt takes for QEMU: it examines QEMU again when the time changes at which the file's number of names
/// changed last.
const EMULATOR: &str = "vmwrapper";
/// Pods' addresses; private to the stack's network namespace, so all stacks use the same.
const POD_SUBNET: &str = "10.88.0.0/16";

/// Writes all of it.
pub(crate) fn write_all(layout: &Layout, record: &Record) -> Result<()> {
    write(layout, "libvirt/libvirtd.conf", &libvirtd_conf(layout))?;
    write(layout, "libvirt/etc/qemu.conf", &qemu_conf(&qemu_group()?))?;
    let conflist = conflist(layout, record)?;
    write(layout, "cni/conf/10-vmlet.conflist", &conflist)?;
    // A file of the stack's own, so that a test can say that the node was rebooted.
    if !layout.path("boot-id").exists() {
        cluster::new_boot_id(layout)?;
    }
    let backups = backups(layout, record);
    fs::create_dir_all(&backups).with_context(|| format!("create {}", backups.display()))?;
    write(layout, "vmlet.toml", &vmlet_toml(layout, record))?;
    write_environment(layout, record)
}

/// Writes what people and tests need to reach the stack.
pub(crate) fn write_environment(layout: &Layout, record: &Record) -> Result<()> {
    write(layout, "env.sh", &env_sh(layout, record))
}

fn write(layout: &Layout, name: &str, text: &str) -> Result<()> {
    let path = layout.path(name);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// The directory of the target of backups: all nodes of a cluster have that of the first one.
fn backups(layout: &Layout, record: &Record) -> PathBuf {
    let control = record.node.as_ref().map(|node| node.control.as_path());
    control.unwrap_or_else(|| layout.dir()).join("backups")
}

fn vmlet_toml(layout: &Layout, record: &Record) -> String {
    let path = |below: &str| toml_string(&layout.path(below).to_string_lossy());
    let mut text = String::new();
    let _ = write!(
        text,
        "listen = {listen}\nstate_dir = {state}\nboot_id_file = {boot}\n\n\
         [log]\nlevel = \"info\"\nformat = \"text\"\n\n\
         [libvirt]\nuri = {uri}\n\n\
         [node]\nendpoint = {node}\n\n\
         [network]\ntapmanager_socket = {tapmanager}\nhandoff_socket = {handoff}\n\n\
         [vm]\naccelerator = \"auto\"\nemulator = \"/usr/bin/qemu-system-x86_64\"\n\
         wrapper = {wrapper}\nguest_agent = {guest_agent}\nuser = {user}\n\n\
         [shares]\nprogram = {virtiofsd}\n\n\
         [backup]\ntargets = [{backups}]\n\n\
         [images]\nprotocol = \"http\"\n\
         # Tests need their images, however full the disk of the machine is.\n\
         high_water_percent = 0\n\
         allowed_addresses = [\"127.0.0.1/32\"]\nprivate_addresses = \"allow\"\nregistries_dir = {registries}\n\n\
         [[images.translations]]\nname = {image}\nurl = {url}\n\n\
         [[images.translations]]\nname = {uefi}\nurl = {uefi_url}\n\n\
         [[images.translations]]\nname = {generic}\nurl = {generic_url}\n\n\
         [[images.translations]]\nname = {debian}\nurl = {debian_url}\n",
        listen = toml_string(&layout.cri_socket().to_string_lossy()),
        state = path("state"),
        boot = path("boot-id"),
        uri = toml_string(&layout.libvirt_uri()),
        node = path(NODE_SOCKET),
        tapmanager = path("run/tapmanager.sock"),
        handoff = path("run/handoff.sock"),
        wrapper = path("bin/vmwrapper"),
        guest_agent = path("bin/vmlet-guest"),
        virtiofsd = path("bin/vmlet-virtiofsd"),
        user = toml_string(QEMU_USER),
        backups = toml_string(&format!(
            "{BACKUP_TARGET}={}",
            backups(layout, record).display()
        )),
        registries = path("registry/hosts"),
        image = toml_string(IMAGE),
        url = toml_string(&record.image_url()),
        uefi = toml_string(UEFI),
        uefi_url = toml_string(&record.uefi_url()),
        generic = toml_string(GENERIC),
        generic_url = toml_string(&record.generic_url()),
        debian = toml_string(DEBIAN),
        debian_url = toml_string(&record.debian_url()),
    );
    text
}

/// In a cluster two runtimes share the network: neither may collect what the other one has, and
/// pods keep their addresses on the way to other nodes.
fn conflist(layout: &Layout, record: &Record) -> Result<String> {
    let node = record.node.as_ref();
    let subnet = node.map_or_else(|| POD_SUBNET.to_owned(), Node::pod_subnet);
    let list = json!({
        "cniVersion": "1.0.0",
        "name": "vmlet",
        "disableGC": node.is_some(),
        "plugins": [
            {
                "type": "bridge",
                "bridge": POD_BRIDGE,
                "isGateway": true,
                "ipMasq": node.is_none(),
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": subnet }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                    "dataDir": layout.path("cni/ipam"),
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true },
        ],
    });
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}

fn libvirtd_conf(layout: &Layout) -> String {
    format!(
        "unix_sock_dir = \"{}\"\nunix_sock_ro_perms = \"0700\"\nunix_sock_rw_perms = \"0700\"\n\
         auth_unix_ro = \"none\"\nauth_unix_rw = \"none\"\nmax_workers = 64\n\
         log_level = 3\nlog_outputs = \"3:stderr\"\n",
        layout.path("libvirt/sock").display()
    )
}

/// No cgroups (QEMU is placed by its pod), no mount namespaces (they do not work on a private
/// `/dev`), no log daemon.
fn qemu_conf(group: &str) -> String {
    format!(
        "user = \"{QEMU_USER}\"\ngroup = \"{group}\"\ndynamic_ownership = 1\n\
         seccomp_sandbox = 1\nsecurity_driver = \"none\"\nstdio_handler = \"file\"\ncgroup_controllers = [ ]\n\
         namespaces = [ ]\n"
    )
}

/// The group that all machines share: the primary one of QEMU's user.
fn qemu_group() -> Result<String> {
    let user = User::from_name(QEMU_USER).context("look up QEMU's user")?;
    let user =
        user.with_context(|| format!("there is no user {QEMU_USER}: run cargo xtask setup"))?;
    Ok(format!("+{}", user.gid))
}

/// The name under which the guest image can be pulled.
pub(crate) fn test_image() -> String {
    format!("{IMAGE}:latest")
}

/// The variables of `env.sh`, for programs that are started by us.
pub(crate) fn variables(layout: &Layout, record: &Record) -> Vec<(&'static str, String)> {
    let endpoint = format!("unix://{}", layout.cri_socket().display());
    let mut variables = vec![
        ("CONTAINER_RUNTIME_ENDPOINT", endpoint.clone()),
        ("IMAGE_SERVICE_ENDPOINT", endpoint),
        (
            "VMLET_NODE_ENDPOINT",
            format!("unix://{}", layout.path(NODE_SOCKET).display()),
        ),
        ("VMLET_NETNS", layout.netns_name()),
        ("VMLET_TEST_IMAGE", test_image()),
        ("VMLET_TEST_IMAGE_URL", record.image_url()),
        ("VMLET_UEFI_IMAGE", format!("{UEFI}:latest")),
        ("VMLET_GENERIC_IMAGE", format!("{GENERIC}:latest")),
        ("VMLET_DEBIAN_IMAGE", format!("{DEBIAN}:latest")),
    ];
    if let Some(node) = &record.node {
        let unix = |socket: PathBuf| format!("unix://{}", socket.display());
        variables.extend([
            ("KUBECONFIG", node.kubeconfig().display().to_string()),
            (
                "VMLET_CONTAINERD_ENDPOINT",
                unix(cluster::containerd_socket(layout)),
            ),
            ("VMLET_PROXY_ENDPOINT", unix(cluster::proxy_socket(layout))),
            ("VMLET_CLUSTER_NODE", node.name()),
            ("VMLET_TOOL_IMAGE", pod_images::TOOLS.to_owned()),
        ]);
    }
    variables
}

/// The PATH on which the stack's own programs come first, then the tools.
pub(crate) fn search_path(layout: &Layout) -> String {
    let tools = workspace::tools_bin();
    format!(
        "{}:{}:{}",
        layout.path("bin").display(),
        tools.display(),
        run::search_path()
    )
}

fn env_sh(layout: &Layout, record: &Record) -> String {
    let mut text = "# The environment of this stack: . env.sh\n".to_owned();
    for (name, value) in variables(layout, record) {
        let _ = writeln!(text, "export {name}={}", shell_quote(&value));
    }
    let folders = format!(
        "{}:{}",
        layout.path("bin").display(),
        workspace::tools_bin().display()
    );
    let _ = writeln!(text, "export PATH=\"{}:$PATH\"", double_quote(&folders));
    text
}

fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// For text between double quotes, where the shell still looks for variables and commands.
fn double_quote(text: &str) -> String {
    let escape = |c| {
        if matches!(c, '"' | '\\' | '$' | '`') {
            format!("\\{c}")
        } else {
            format!("{c}")
        }
    };
    text.chars().map(escape).collect()
}

pub(crate) fn toml_string(text: &str) -> String {
    // A JSON string is a TOML basic string.
    json!(text).to_string()
}

/// Puts our programs into the stack, where QEMU's user can reach them wherever the checkout is.
pub(crate) fn install_programs(layout: &Layout, built: &Path, record: &Record) -> Result<()> {
    let node = record.node.as_ref();
    let proxy = node.map(|_| "vmlet-criproxy");
    let controller = node.filter(|node| node.has_controller());
    let controller = controller.map(|_| "vmlet-controller");
    let agent = record.node.as_ref().filter(|node| node.has_agent());
    let agent = agent.map(|_| "vmlet-agent");
    for name in [
        "vmlet",
        "vmlet-tapmanager",
        "vmlet-virtiofsd",
        "vmwrapper",
        "vmletctl",
    ]
    .into_iter()
    .chain(proxy)
    .chain(controller)
    .chain(agent)
    {
        let from = built.join(name);
        install_program(name, &from, &layout.path("bin").join(name))
            .with_context(|| format!("copy {}: was it built?", from.display()))?;
    }
    let agent = image::agent::path();
    fs::copy(&agent, layout.path("bin/vmlet-guest"))
        .with_context(|| format!("copy {}: was the guest image built?", agent.display()))?;
    install_plugin(&layout.path("bin"))
}

/// Gives a program one more name, where the file system has both places: copies would be hundreds of megabytes for
/// each stack. Another version of a program has to take the place of the name, not be written into the file.
fn install_program(name: &str, from: &Path, to: &Path) -> io::Result<()> {
    if name == EMULATOR {
        return fs::copy(from, to).map(drop);
    }
    match fs::hard_link(from, to) {
        // A copy would be written into the file, which may be that of the build.
        Err(error) if error.kind() != ErrorKind::AlreadyExists => fs::copy(from, to).map(drop),
        linked => linked,
    }
}

/// `kubectl vmlet` and its completion: kubectl looks for these names on its PATH. `vmletctl` lies
/// in the same folder.
fn install_plugin(folder: &Path) -> Result<()> {
    for name in ["kubectl-vmlet", "kubectl_complete-vmlet"] {
        let plugin = folder.join(name);
        match fs::remove_file(&plugin) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => symlink("vmletctl", &plugin),
        }
        .with_context(|| format!("link {}", plugin.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn all_programs_but_the_emulator_are_the_built_files() {
        let dir = tempfile::tempdir().unwrap();
        let built = dir.path().join("built");
        fs::write(&built, "program").unwrap();
        let is_built_file = |name: &str| {
            let place = dir.path().join(name);
            install_program(name, &built, &place).unwrap();
            assert_eq!(fs::read_to_string(&place).unwrap(), "program");
            fs::metadata(place).unwrap().ino() == fs::metadata(&built).unwrap().ino()
        };
        assert!(is_built_file("vmlet"));
        assert!(!is_built_file(EMULATOR));
        assert!(install_program("vmlet", &dir.path().join("none"), &built).is_err());
    }

    #[test]
    fn a_quoted_value_survives_the_shell() {
        for value in [
            "plain",
            "two words",
            "it's",
            "$HOME `x` \"y\"",
            "back\\slash",
        ] {
            let script = format!("printf %s {}", shell_quote(value));
            assert_eq!(
                run::output(run::command("sh").args(["-c", &script])).unwrap(),
                value
            );
        }
    }

    #[test]
    fn the_plugin_is_linked_beside_vmletctl_and_linking_it_again_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("vmletctl"), "program").unwrap();
        for _ in 0..2 {
            install_plugin(folder.path()).unwrap();
            let read = fs::read_to_string(folder.path().join("kubectl-vmlet"));
            assert_eq!(read.unwrap(), "program");
        }
    }

    #[test]
    fn strings_in_the_configuration_are_escaped() {
        assert_eq!(toml_string("a\"b\\c"), "\"a\\\"b\\\\c\"");
    }
}
