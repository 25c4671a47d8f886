//! The stack's own network namespace, with a bridge as the node's interface.
//!
//! Invariant: addresses and ports in it never meet those of the host or of another stack.
//! Failure: the `ip` command that was refused is in the error.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use serde::Deserialize;

use super::Layout;
use crate::run;

/// The bridge in place of the node's network card.
pub(crate) const NODE_LINK: &str = "node0";
/// The bridge of the CNI configuration.
pub(crate) const POD_BRIDGE: &str = "cni0";
/// The address of a node that is alone.
pub(crate) const NODE_ADDRESS: &str = "10.200.0.10";

#[derive(Deserialize)]
struct Link {
    ifname: String,
}

/// Creates the namespace; returns the links that the kernel put there.
pub(crate) fn create(layout: &Layout, address: &str) -> Result<Vec<String>> {
    let name = layout.netns_name();
    run::output(run::command("ip").args(["netns", "add", &name]))?;
    let kernel_links = links(layout)?;
    let ip = |args: &[&str]| run::output(run::command("ip").args(["-n", &name]).args(args));
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "add", NODE_LINK, "type", "bridge"])?;
    let address = format!("{address}/24");
    ip(&["address", "add", &address, "dev", NODE_LINK])?;
    ip(&["link", "set", NODE_LINK, "up"])?;
    ip(&["route", "add", "default", "dev", NODE_LINK])?;
    inside(&layout.netns_path(), || {
        for setting in ["ip_forward", "conf/all/route_localnet"] {
            let path = format!("/proc/sys/net/ipv4/{setting}");
            fs::write(&path, "1").with_context(|| format!("set {path}"))?;
        }
        Ok(())
    })?;
    Ok(kernel_links)
}

/// Keeps a port from being taken for an outgoing connection.
pub(crate) fn reserve_port(layout: &Layout, port: u16) -> Result<()> {
    inside(&layout.netns_path(), || {
        fs::write(
            "/proc/sys/net/ipv4/ip_local_reserved_ports",
            port.to_string(),
        )
        .with_context(|| format!("reserve port {port}"))
    })
}

/// The names of all links in the stack's namespace.
pub(crate) fn links(layout: &Layout) -> Result<Vec<String>> {
    let name = layout.netns_name();
    let json = run::output(run::command("ip").args(["-n", &name, "-j", "link"]))?;
    let links: Vec<Link> = serde_json::from_str(&json).context("parse the answer of ip link")?;
    Ok(links.into_iter().map(|link| link.ifname).collect())
}

/// Deletes the namespace if it is there.
pub(crate) fn delete(layout: &Layout) -> Result<()> {
    if layout.netns_path().exists() {
        run::output(run::command("ip").args(["netns", "delete", &layout.netns_name()]))?;
    }
    Ok(())
}

/// Moves this thread into a network namespace, for good.
pub(crate) fn enter(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    setns(&file, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", path.display()))
}

/// Runs `action` on a thread inside a network namespace.
pub(crate) fn inside<T: Send>(path: &Path, action: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(path)?;
            action()
        });
        thread
            .join()
            .map_err(|_| anyhow!("the thread inside {} panicked", path.display()))?
    })
}
