//! Networks of sandboxes that only keep state.
//!
//! Invariant: answers as the real owner of networks does: repeatable, and a refusal may leave a
//! part behind.
//! Failure: knobs make it refuse, hang or go away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use podspec::SandboxId;
use tapmanager::client::Error;
use tapmanager::wire::{
    AddRequest, Dns, ErrorCode, Network, Nic, NicCounters, Permit, PodRoute, SandboxCounters,
    StartRequest, Status, WireError,
};
use tokio::sync::Notify;

use crate::network::PodNetwork;

#[derive(Debug, Clone, Default)]
pub(crate) struct FakeNetwork(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// `None` is a part of a network.
    networks: BTreeMap<String, Option<Network>>,
    away: bool,
    leaves: bool,
    refuses_add: bool,
    refuses_del: BTreeSet<String>,
    hangs: BTreeSet<String>,
    collections: usize,
    starts: Vec<StartRequest>,
    added: Vec<AddRequest>,
    traffic: BTreeMap<String, NicCounters>,
}

impl FakeNetwork {
    /// Goes away, or returns.
    pub(crate) fn set_away(&self, away: bool) {
        self.lock().away = away;
    }

    /// Goes away as soon as it has given the next token.
    pub(crate) fn leave_after_the_token(&self) {
        self.lock().leaves = true;
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

    /// Adding a network for pods of this name hangs until [`Self::go_on`].
    pub(crate) fn hang(&self, pod: &str) {
        self.lock().hangs.insert(pod.to_owned());
    }

    pub(crate) fn go_on(&self) {
        self.lock().hangs.clear();
        self.0.changed.notify_waiters();
    }

    /// Something that no sandbox owns.
    pub(crate) fn plant(&self, id: &str) {
        self.lock().networks.insert(id.to_owned(), None);
    }

    /// The network vanishes, as at a reboot.
    pub(crate) fn lose(&self, id: &SandboxId) {
        self.lock().networks.remove(id.as_str());
    }

    /// The guest has received and sent this many bytes.
    pub(crate) fn transfer(&self, id: &SandboxId, rx_bytes: u64, tx_bytes: u64) {
        let nic = NicCounters {
            link: "eth0".to_owned(),
            rx_bytes,
            rx_errors: 0,
            tx_bytes,
            tx_errors: 0,
            rx_packets: Some(3),
            rx_dropped: Some(0),
            tx_packets: Some(4),
            tx_dropped: Some(1),
        };
        self.lock().traffic.insert(id.to_string(), nic);
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.lock().networks.keys().cloned().collect()
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn here(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.lock();
        match state.away {
            true => Err(Error::Deadline(Duration::from_secs(1))),
            false => Ok(state),
        }
    }
}

impl PodNetwork for FakeNetwork {
    async fn add(&self, request: AddRequest) -> Result<Network, Error> {
        // A part of it is there before anything can go wrong.
        self.here()?.networks.entry(request.id.clone()).or_default();
        loop {
            let changed = self.0.changed.notified();
            if !self.lock().hangs.contains(&request.pod_name) {
                break;
            }
            changed.await;
        }
        let mut state = self.here()?;
        if state.refuses_add {
            return Err(refused("the plugin failed"));
        }
        let network = network(&request);
        state.added.push(request.clone());
        let made = state.networks.insert(request.id, Some(network.clone()));
        match made {
            Some(_) => Ok(network),
            None => Err(refused("it was taken down meanwhile")),
        }
    }

    async fn get(&self, id: &SandboxId) -> Result<Option<Network>, Error> {
        Ok(self.here()?.networks.get(id.as_str()).cloned().flatten())
    }

    async fn del(&self, id: &SandboxId) -> Result<(), Error> {
        let mut state = self.here()?;
        if state.refuses_del.contains(id.as_str()) {
            return Err(refused("the plugin failed"));
        }
        state.networks.remove(id.as_str());
        Ok(())
    }

    async fn list(&self) -> Result<Vec<String>, Error> {
        Ok(self.here()?.networks.keys().cloned().collect())
    }

    async fn gc(&self, keep: Vec<String>) -> Result<Vec<String>, Error> {
        let mut state = self.here()?;
        state.collections += 1;
        let (kept, gone) = std::mem::take(&mut state.networks)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(id, _)| keep.contains(id));
        state.networks = kept;
        Ok(gone.into_keys().collect())
    }

    async fn counters(&self) -> Result<Vec<SandboxCounters>, Error> {
        let state = self.here()?;
        let counters = state.networks.keys().map(|id| SandboxCounters {
            id: id.clone(),
            nics: state.traffic.get(id).cloned().into_iter().collect(),
        });
        Ok(counters.collect())
    }

    async fn status(&self) -> Result<Status, Error> {
        drop(self.here()?);
        Ok(Status {
            ready: true,
            ..Status::default()
        })
    }

    async fn routes(&self, _: &SandboxId) -> Result<Option<Vec<PodRoute>>, Error> {
        drop(self.here()?);
        Ok(None)
    }

    async fn prepare_start(&self, request: StartRequest) -> Result<Permit, Error> {
        let mut state = self.here()?;
        state.starts.push(request);
        state.away = std::mem::take(&mut state.leaves);
        Ok(Permit {
            token: "token".to_owned(),
            socket: None,
        })
    }
}

fn network(request: &AddRequest) -> Network {
    let id = &request.id;
    Network {
        id: id.clone(),
        netns: format!("/run/netns/{id}").into(),
        nics: vec![nic()],
        detached: request.detached,
        omitted: Vec::new(),
        dns: Dns::default(),
        cni_network: "fake".to_owned(),
        cni_result: serde_json::Value::Null,
    }
}

/// The one NIC of every guest.
fn nic() -> Nic {
    Nic {
        link: "eth0".to_owned(),
        mac: "0a:58:0a:01:00:05".to_owned(),
        mtu: 1500,
        bridge: "vmbr0".to_owned(),
        tap: "vmtap0".to_owned(),
        addresses: Vec::new(),
        routes: Vec::new(),
    }
}

fn refused(why: &str) -> Error {
    Error::Refused(WireError {
        code: ErrorCode::Plugin,
        message: why.to_owned(),
    })
}
