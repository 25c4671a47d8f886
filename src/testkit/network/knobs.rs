//! What tests make the fake do, and look up in it.
//!
//! Invariant: a knob is in force until it is turned back, unless it says otherwise.
//! Failure: none.

use podspec::SandboxId;
use tapmanager::wire::{AddRequest, NicCounters, StartRequest};

use super::{Entry, FakeNetwork, idle};

impl FakeNetwork {
    /// Goes away as by `kill -9`, or returns.
    pub(crate) fn set_away(&self, away: bool) {
        let mut state = self.lock();
        if away {
            state.leave();
        }
        state.away = away;
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// Goes away as soon as it has given the next token.
    pub(crate) fn leave_after_the_token(&self) {
        self.lock().leaves = true;
    }

    /// Goes away with the next effect, before the answer.
    pub(crate) fn lose_answer(&self) {
        self.lock().loses_answer = true;
    }

    pub(crate) fn refuse_add(&self, refuse: bool) {
        self.lock().refuses_add = refuse;
    }

    pub(crate) fn refuse_del(&self, id: &SandboxId) {
        self.lock().refuses_del.insert(id.to_string());
    }

    pub(crate) fn accept_del(&self) {
        self.lock().refuses_del.clear();
    }

    /// Networks that are made from now on have an address.
    pub(crate) fn give_addresses(&self) {
        self.lock().has_addresses = true;
    }

    /// Plugins of pods of this name hang until [`Self::go_on`].
    pub(crate) fn hang(&self, pod: &str) {
        self.lock().hangs.insert(pod.to_owned());
    }

    pub(crate) fn go_on(&self) {
        self.lock().hangs.clear();
        self.0.changed.notify_waiters();
    }

    /// Waits until a plugin hangs.
    pub(crate) async fn hanging(&self) {
        self.until(|state| state.hanging > 0).await;
    }

    /// Something that no sandbox owns.
    pub(crate) fn plant(&self, id: &str) {
        self.lock().entries.insert(id.to_owned(), Entry::default());
    }

    /// The network vanishes, as at a reboot.
    pub(crate) fn lose(&self, id: &SandboxId) {
        self.lock().entries.remove(id.as_str());
    }

    /// The guest has received and sent this many bytes.
    pub(crate) fn transfer(&self, id: &SandboxId, rx_bytes: u64, tx_bytes: u64) {
        let nic = NicCounters {
            rx_bytes,
            tx_bytes,
            rx_packets: Some(3),
            tx_packets: Some(4),
            tx_dropped: Some(1),
            ..idle()
        };
        self.lock().traffic.insert(id.to_string(), nic);
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.lock().entries.keys().cloned().collect()
    }

    pub(crate) fn collections(&self) -> usize {
        self.lock().collections
    }

    /// What was requested, in order.
    pub(crate) fn added(&self) -> Vec<AddRequest> {
        self.lock().added.clone()
    }

    pub(crate) fn starts(&self) -> Vec<StartRequest> {
        self.lock().starts.clone()
    }
}
