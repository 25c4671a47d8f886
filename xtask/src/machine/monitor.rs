//! QEMU's monitor: saves the memory, plugs disks in, ends the machine.
//!
//! Invariant: names of files are relative to the folder of the run, where QEMU runs.
//! Failure: QEMU's own description of what it refuses.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::channel::Channel;
use super::{PATIENCE, wait_for};

/// The memory of the machine, packed, is written and read in this time.
const TRANSFER: Duration = Duration::from_secs(600);

/// A connection to the monitor.
#[derive(Debug)]
pub(super) struct Monitor {
    channel: Channel,
}

impl Monitor {
    /// Connects to a running QEMU.
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let mut channel = Channel::connect(socket)?;
        channel
            .receive(Instant::now() + PATIENCE)?
            .context("QEMU's monitor does not greet")?;
        let mut monitor = Self { channel };
        monitor.call("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn call(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        self.channel.call(command, arguments, PATIENCE)
    }

    /// Waits until the memory was loaded and lets the processors run, which stand still in it.
    pub(super) fn resume(&mut self) -> Result<()> {
        wait_for("the memory is loaded", TRANSFER, || {
            let status = self.call("query-status", &json!({}))?;
            Ok((status["status"] == "paused").then_some(()))
        })?;
        self.call("cont", &json!({})).map(drop)
    }

    /// Stops the processors and writes memory and devices into a packed file.
    pub(super) fn save(&mut self, file: &str) -> Result<()> {
        self.call("stop", &json!({}))?;
        // The default is made for a network that others use, too.
        let parameters = json!({"max-bandwidth": 8_u64 << 30});
        self.call("migrate-set-parameters", &parameters)?;
        let uri = format!("exec:zstd -q -3 -f -o {file}");
        self.call("migrate", &json!({"uri": uri}))?;
        wait_for("the memory is saved", TRANSFER, || {
            let state = self.call("query-migrate", &json!({}))?;
            match state["status"].as_str() {
                Some("completed") => Ok(Some(())),
                Some("failed" | "cancelled") => bail!("failed to save the memory: {state}"),
                _ => Ok(None),
            }
        })
    }

    /// Plugs in a disk that cannot be written to.
    pub(super) fn plug(&mut self, name: &str, file: &str) -> Result<()> {
        let source = json!({"driver": "file", "filename": file, "read-only": true});
        let node = json!({"driver": "raw", "node-name": name, "read-only": true, "file": source});
        self.call("blockdev-add", &node)?;
        let device = json!({
            "driver": "virtio-blk-pci", "id": format!("{name}-disk"),
            "drive": name, "bus": super::qemu::FREE_PORT, "serial": name,
        });
        self.call("device_add", &device).map(drop)
    }

    /// Ends QEMU. What the machine has not written to its disk is lost.
    pub(super) fn quit(mut self) -> Result<()> {
        self.call("quit", &json!({})).map(drop)
    }
}
