//! Character devices: the console and the channels of the guest agents.
//!
//! Invariant: QEMU itself appends to the console's log, so that no byte depends on our being there.
//! `vmwrapper` puts files in the place of the console's socket and log; what is described here serves a
//! wrapper that cannot.
//! Failure: a path that is not UTF-8.

use std::path::Path;

use serde::Serialize;

use super::{Result, text};
use crate::vm::domain::Console;

#[derive(Debug, Serialize)]
pub(super) struct Serial {
    #[serde(rename = "@type")]
    kind: &'static str,
    source: Source,
    log: Log,
    target: SerialTarget,
}

#[derive(Debug, Serialize)]
struct Source {
    #[serde(rename = "@mode")]
    mode: &'static str,
    #[serde(rename = "@path")]
    path: String,
}

#[derive(Debug, Serialize)]
struct Log {
    #[serde(rename = "@file")]
    file: String,
    #[serde(rename = "@append")]
    append: &'static str,
}

#[derive(Debug, Serialize)]
struct SerialTarget {
    #[serde(rename = "@type")]
    kind: &'static str,
    #[serde(rename = "@port")]
    port: u8,
}

#[derive(Debug, Serialize)]
pub(super) struct Channel {
    #[serde(rename = "@type")]
    kind: &'static str,
    source: Source,
    target: ChannelTarget,
}

#[derive(Debug, Serialize)]
struct ChannelTarget {
    #[serde(rename = "@type")]
    kind: &'static str,
    #[serde(rename = "@name")]
    name: &'static str,
}

impl Serial {
    pub(super) fn new(console: &Console) -> Result<Self> {
        Ok(Self {
            kind: "unix",
            source: Source {
                mode: "bind",
                path: text(&console.socket)?,
            },
            log: Log {
                file: text(&console.log)?,
                append: "on",
            },
            target: SerialTarget {
                kind: "isa-serial",
                port: 0,
            },
        })
    }
}

impl Channel {
    /// libvirt connects to the socket.
    pub(super) fn guest_agent(socket: &Path) -> Result<Self> {
        Self::new(socket, "org.qemu.guest_agent.0")
    }

    /// The daemon connects to the socket.
    pub(super) fn vmlet_guest(socket: &Path) -> Result<Self> {
        Self::new(socket, guestapi::PORT)
    }

    fn new(socket: &Path, name: &'static str) -> Result<Self> {
        Ok(Self {
            kind: "unix",
            source: Source {
                mode: "bind",
                path: text(socket)?,
            },
            target: ChannelTarget {
                kind: "virtio",
                name,
            },
        })
    }
}
