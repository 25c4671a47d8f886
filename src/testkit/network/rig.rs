//! The fake under the contract of owners of networks.
//!
//! Invariant: the knobs are those that the daemon's tests use.
//! Failure: the case in which the fake differs from `vmlet-tapmanager`.

use podspec::SandboxId;

use super::FakeNetwork;
use super::contract::{Lost, POD, Rig, all};

struct Fake(FakeNetwork);

impl Rig for Fake {
    type Network = FakeNetwork;

    fn network(&self) -> FakeNetwork {
        self.0.clone()
    }

    fn refuse_add(&self, refuse: bool) {
        self.0.refuse_add(refuse);
    }

    fn refuse_del(&self, id: &SandboxId) {
        self.0.refuse_del(id);
    }

    fn accept_del(&self) {
        self.0.accept_del();
    }

    fn hold_plugins(&self) {
        self.0.hang(POD);
    }

    async fn held(&self) {
        self.0.hanging().await;
    }

    fn release_plugins(&self) {
        self.0.go_on();
    }

    async fn leave(&mut self) {
        self.0.set_away(true);
    }

    async fn come_back(&mut self) {
        self.0.set_away(false);
    }

    fn lose_answer(&self, _: Lost) {
        self.0.lose_answer();
    }
}

#[tokio::test]
async fn the_fake_keeps_the_contract() {
    let all = async { all(&mut Fake(FakeNetwork::default())).await };
    let in_time = tokio::time::timeout(crate::testkit::TIMEOUT, Box::pin(all)).await;
    in_time.expect("no case hangs");
}
