//! The record of a stack from `up` to `down`: DIR/stack.json.
//!
//! Invariant: written before the first thing outside the directory is created, so that an
//! interrupted `up` can be taken down.
//! Failure: without it a directory is not a stack and nothing in it is touched.

use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::cluster::Node;
use super::{Layout, Program};

/// The facts about a stack that cannot be derived from its directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Whether libvirtd sees a `/dev/kvm`.
    pub(crate) kvm: bool,
    /// Links that the kernel puts into each new network namespace here.
    pub(crate) kernel_links: Vec<String>,
    /// The image server's port on 127.0.0.1, once it listens.
    pub(crate) http_port: Option<u16>,
    /// Whether it has registries.
    #[serde(default)]
    pub(crate) registries: bool,
    /// Its place in a cluster, if it is in one.
    #[serde(default)]
    pub(crate) node: Option<Node>,
}

/// The programs of registries.
pub(crate) const REGISTRIES: [Program; 2] = [Program::Registry, Program::RegistryWithLogin];

impl Record {
    /// Reads the record of a stack.
    pub(crate) fn read(layout: &Layout) -> Result<Self> {
        let path = layout.path("stack.json");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("no stack in {}", layout.dir().display()))?;
        serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
    }

    /// Writes it.
    pub(crate) fn write(&self, layout: &Layout) -> Result<()> {
        let path = layout.path("stack.json");
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))
    }

    /// Its programs, in the order in which they are started.
    pub(crate) fn programs(&self) -> Vec<Program> {
        let mut programs = self.node.as_ref().map_or_else(
            || vec![Program::Libvirtd, Program::VmletTapmanager, Program::Vmlet],
            Node::programs,
        );
        if self.registries {
            programs.extend(REGISTRIES);
        }
        programs
    }

    /// Where the guest image is served, as seen from the host and from inside the stack.
    pub(crate) fn image_url(&self) -> String {
        self.url("hello.qcow2")
    }

    /// The same of the guest image that UEFI alone boots.
    pub(crate) fn uefi_url(&self) -> String {
        self.url("uefi.qcow2")
    }

    /// The same of the guest image with the kernel for all machines.
    pub(crate) fn generic_url(&self) -> String {
        self.url("generic.qcow2")
    }

    /// The same of the image of Debian.
    pub(crate) fn debian_url(&self) -> String {
        self.url("debian.qcow2")
    }

    fn url(&self, file: &str) -> String {
        let port = self.http_port.unwrap_or_default();
        format!("http://127.0.0.1:{port}/{file}")
    }
}
