//! The contract of owners of networks, kept by the program with real plugins.
//!
//! The cases are those of the daemon's fake.
//!
//! Invariant: the program is used by the daemon's own trait. A plugin behind the real ones refuses or
//! waits where a case needs that.
//! Failure: the case, by its function.

#[path = "../../../src/testkit/network/contract.rs"]
mod contract;
#[path = "../../../src/testkit/network/loss.rs"]
mod loss;
#[allow(unreachable_pub, reason = "it is public in the daemon's library")]
#[path = "../../../src/network.rs"]
mod network;

use std::fs::File;
use std::path::{Path, PathBuf};

use podspec::SandboxId;
use serde_json::json;
use tapmanager::client::Client;

use crate::node::{DEADLINE, Node, real_plugins};
use contract::{Lost, Rig};
use network::PodNetwork;

/// Says that it was called, waits while the test has the lock, and refuses what a file beside it names.
const PLUGIN: &str = r#": > $0.called
flock -s $0.lock true
refuse() { echo '{"cniVersion":"1.0.0","code":100,"msg":"refused by the test"}'; exit 1; }
case $CNI_COMMAND in
ADD) [ ! -e $0.refuses ] || refuse; sed 's/.*"prevResult"://; s/,"type":.*//' ;;
DEL) [ ! -e $0.keeps-$CNI_CONTAINERID ] || refuse ;;
esac"#;

struct Real {
    node: Node,
    lock: File,
    is_running: bool,
}

impl Real {
    async fn start() -> Self {
        let mut node = Node::new().await;
        node.plugin("gate", PLUGIN).await;
        let mut network = real_plugins(node.scratch.path());
        network["plugins"][1] = json!({"type": "gate"});
        node.configure(&network).await;
        let lock = File::create(beside(&node, "lock")).unwrap();
        node.launch().await;
        Self {
            node,
            lock,
            is_running: true,
        }
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        beside(&self.node, suffix)
    }
}

/// A file beside the plugin.
fn beside(node: &Node, suffix: &str) -> PathBuf {
    node.scratch.path().join(format!("bin/gate.{suffix}"))
}

fn write(file: &Path) {
    std::fs::write(file, "").unwrap();
}

impl Rig for Real {
    type Network = Client;

    fn network(&self) -> Client {
        self.node.client()
    }

    fn refuse_add(&self, refuse: bool) {
        let file = self.beside("refuses");
        if refuse {
            write(&file);
        } else {
            std::fs::remove_file(file).unwrap();
        }
    }

    fn refuse_del(&self, id: &SandboxId) {
        write(&self.beside(&format!("keeps-{id}")));
    }

    fn accept_del(&self) {
        let files = std::fs::read_dir(self.node.scratch.path().join("bin")).unwrap();
        for file in files.map(|entry| entry.unwrap().path()) {
            if file.to_string_lossy().contains("gate.keeps-") {
                std::fs::remove_file(file).unwrap();
            }
        }
    }

    fn hold_plugins(&self) {
        // An earlier case may have run no plugin.
        let _ = std::fs::remove_file(self.beside("called"));
        self.lock.lock().unwrap();
    }

    async fn held(&self) {
        let called = async {
            while !self.beside("called").exists() {
                tokio::task::yield_now().await;
            }
        };
        let in_time = tokio::time::timeout(DEADLINE, called).await;
        in_time.unwrap_or_else(|_| panic!("no plugin was called:\n{}", self.node.log()));
    }

    fn release_plugins(&self) {
        self.lock.unlock().unwrap();
    }

    async fn leave(&mut self) {
        self.node.kill().await;
        self.is_running = false;
    }

    async fn come_back(&mut self) {
        if self.is_running {
            // It ends by itself at the armed point.
            self.node.ended().await;
        }
        self.node.launch().await;
        self.is_running = true;
    }

    fn lose_answer(&self, lost: Lost) {
        self.node.arm(match lost {
            Lost::Add => "tap.add.up",
            Lost::Del => "tap.del.forgotten",
            Lost::Start => "tap.start.token",
        });
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_program_keeps_the_contract() {
    let mut rig = Real::start().await;
    Box::pin(contract::all(&mut rig)).await;
    rig.node.becomes_clean().await;
}
