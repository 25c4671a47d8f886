//! Networks of sandboxes that only keep state.
//!
//! Invariant: what [`contract`] says of every owner of networks: requests for one sandbox wait for each
//! other and are carried out although their callers have given them up; a refusal may leave a part
//! behind.
//! Failure: knobs make it refuse, hang, go away or lose an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use cgroup::PodCgroup;
use podspec::SandboxId;
use tapmanager::client::Error;
use tapmanager::wire::{
    AddRequest, ErrorCode, Network, NicCounters, Permit, PodRoute, SandboxCounters, StartRequest,
    Status,
};
use tokio::sync::Notify;

use crate::locks::Locks;
use crate::network::PodNetwork;

mod contract;
mod knobs;
mod loss;
mod made;
mod rig;

use made::{broken_off, idle, network, refused, unreachable};

#[derive(Debug, Clone, Default)]
pub(crate) struct FakeNetwork(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    /// One request at a time for each sandbox.
    slots: Locks,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    away: bool,
    /// How often it went away: a request that began before is not answered.
    ends: usize,
    leaves: bool,
    loses_answer: bool,
    refuses_add: bool,
    refuses_del: BTreeSet<String>,
    hangs: BTreeSet<String>,
    /// Requests that hang.
    hanging: usize,
    has_addresses: bool,
    collections: usize,
    starts: Vec<StartRequest>,
    added: Vec<AddRequest>,
    traffic: BTreeMap<String, NicCounters>,
}

/// What there is of one sandbox.
#[derive(Debug, Default)]
struct Entry {
    request: AddRequest,
    /// `None` is a part of a network.
    network: Option<Network>,
}

impl FakeNetwork {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    async fn until(&self, reached: impl Fn(&State) -> bool) {
        loop {
            let changed = self.0.changed.notified();
            if reached(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// How often it went away before this request, which has reached it.
    async fn reached(&self) -> Result<usize, Error> {
        let ends = {
            let state = self.lock();
            (!state.away).then_some(state.ends)
        };
        match ends {
            Some(ends) => Ok(ends),
            None => Err(unreachable().await),
        }
    }

    /// The state for a request, unless it went away meanwhile.
    fn since(&self, ends: usize) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.lock();
        if state.ends == ends {
            Ok(state)
        } else {
            Err(broken_off())
        }
    }

    /// Waits while plugins of this pod hang.
    async fn pass(&self, pod: &str, ends: usize) {
        let is_held = |state: &State| state.ends == ends && state.hangs.contains(pod);
        if !is_held(&self.lock()) {
            return;
        }
        self.lock().hanging += 1;
        self.0.changed.notify_waiters();
        self.until(|state| !is_held(state)).await;
        self.lock().hanging -= 1;
    }

    async fn make(&self, request: AddRequest, ends: usize) -> Result<Network, Error> {
        let _slot = self.0.slots.lock(&request.id).await;
        if let Some(network) = self.begin_add(&request, ends)? {
            return Ok(network);
        }
        self.pass(&request.pod_name, ends).await;
        let mut state = self.since(ends)?;
        if state.refuses_add {
            return Err(refused(ErrorCode::Plugin, "the plugin failed"));
        }
        let network = network(&request, state.has_addresses);
        let id = request.id.clone();
        let entry = Entry {
            request,
            network: Some(network.clone()),
        };
        state.entries.insert(id, entry);
        state.answer(network)
    }

    /// The network that the same request made before. Without one a part is there before anything
    /// can go wrong.
    fn begin_add(&self, request: &AddRequest, ends: usize) -> Result<Option<Network>, Error> {
        let mut state = self.since(ends)?;
        state.added.push(request.clone());
        let found = state.entries.get(&request.id);
        if let Some(entry) = found
            && let Some(network) = &entry.network
        {
            if entry.request == *request {
                return Ok(Some(network.clone()));
            }
            return Err(refused(ErrorCode::Invalid, "another request made it"));
        }
        // What is left is taken down first.
        if found.is_some() && state.refuses_del.contains(&request.id) {
            return Err(refused(ErrorCode::Plugin, "the plugin failed"));
        }
        let part = Entry {
            request: request.clone(),
            network: None,
        };
        state.entries.insert(request.id.clone(), part);
        Ok(None)
    }

    async fn take_down(&self, id: &str, ends: usize) -> Result<(), Error> {
        let _slot = self.0.slots.lock(id).await;
        let Some(pod) = self.begin_del(id, ends)? else {
            return Ok(());
        };
        self.pass(&pod, ends).await;
        let mut state = self.since(ends)?;
        if state.refuses_del.contains(id) {
            return Err(refused(ErrorCode::Plugin, "the plugin failed"));
        }
        state.entries.remove(id);
        state.answer(())
    }

    /// The pod of a network that is only a part from now on; `None` when there is nothing.
    fn begin_del(&self, id: &str, ends: usize) -> Result<Option<String>, Error> {
        let mut state = self.since(ends)?;
        let Some(entry) = state.entries.get_mut(id) else {
            return Ok(None);
        };
        entry.network = None;
        Ok(Some(entry.request.pod_name.clone()))
    }

    async fn collect(&self, keep: &[String], ends: usize) -> Result<Vec<String>, Error> {
        self.since(ends)?.collections += 1;
        let mut gone = Vec::new();
        for id in self.ids() {
            if !keep.contains(&id) && self.take_down(&id, ends).await.is_ok() {
                gone.push(id);
            }
        }
        drop(self.since(ends)?);
        Ok(gone)
    }
}

impl State {
    fn leave(&mut self) {
        self.away = true;
        self.ends += 1;
    }

    /// The network of a sandbox that is up.
    fn up(&self, id: &str) -> Result<&Network, Error> {
        let entry = self.entries.get(id);
        let network = entry.and_then(|entry| entry.network.as_ref());
        let why = || format!("sandbox {id} has no network");
        network.ok_or_else(|| refused(ErrorCode::NotFound, &why()))
    }

    /// The answer to a request that had an effect, unless it is lost.
    fn answer<T>(&mut self, answer: T) -> Result<T, Error> {
        if std::mem::take(&mut self.loses_answer) {
            self.leave();
            return Err(broken_off());
        }
        Ok(answer)
    }
}

impl PodNetwork for FakeNetwork {
    async fn add(&self, request: AddRequest) -> Result<Network, Error> {
        let ends = self.reached().await?;
        let this = self.clone();
        carried_out(async move { this.make(request, ends).await }).await
    }

    async fn get(&self, id: &SandboxId) -> Result<Option<Network>, Error> {
        let ends = self.reached().await?;
        let _slot = self.0.slots.lock(id.as_str()).await;
        let state = self.since(ends)?;
        Ok(state.up(id.as_str()).ok().cloned())
    }

    async fn del(&self, id: &SandboxId) -> Result<(), Error> {
        let ends = self.reached().await?;
        let this = self.clone();
        let id = id.to_string();
        carried_out(async move { this.take_down(&id, ends).await }).await
    }

    async fn list(&self) -> Result<Vec<String>, Error> {
        self.reached().await?;
        Ok(self.ids())
    }

    async fn gc(&self, keep: Vec<String>) -> Result<Vec<String>, Error> {
        let ends = self.reached().await?;
        let this = self.clone();
        carried_out(async move { this.collect(&keep, ends).await }).await
    }

    async fn counters(&self) -> Result<Vec<SandboxCounters>, Error> {
        self.reached().await?;
        let state = self.lock();
        let up = state.entries.iter().filter(|(_, e)| e.network.is_some());
        let counters = up.map(|(id, _)| SandboxCounters {
            id: id.clone(),
            nics: vec![state.traffic.get(id).cloned().unwrap_or_else(idle)],
        });
        Ok(counters.collect())
    }

    async fn status(&self) -> Result<Status, Error> {
        self.reached().await?;
        Ok(Status {
            ready: true,
            ..Status::default()
        })
    }

    async fn routes(&self, id: &SandboxId) -> Result<Option<Vec<PodRoute>>, Error> {
        let ends = self.reached().await?;
        let _slot = self.0.slots.lock(id.as_str()).await;
        let state = self.since(ends)?;
        let own = state.up(id.as_str())?.own_addresses().into_iter();
        let routes = own.map(|address| PodRoute {
            address,
            link: None,
        });
        Ok(Some(routes.collect()))
    }

    async fn prepare_start(&self, request: StartRequest) -> Result<Permit, Error> {
        let ends = self.reached().await?;
        let _slot = self.0.slots.lock(&request.id).await;
        let mut state = self.since(ends)?;
        state.up(&request.id)?;
        if !request.cgroup_parent.is_empty() {
            let cgroup = PodCgroup::parse(&request.cgroup_parent);
            cgroup.map_err(|e| refused(ErrorCode::Invalid, &e.to_string()))?;
        }
        state.starts.push(request);
        let token = format!("{:064x}", state.starts.len());
        if std::mem::take(&mut state.leaves) {
            state.leave();
        }
        state.answer(Permit {
            token,
            socket: None,
        })
    }
}

/// Carries a request out, also when its caller gives it up.
async fn carried_out<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    tokio::spawn(work).await.expect("a request that ends")
}
