//! Monitors the connections, and reads the objects of each runtime when it connects.
//!
//! Invariant: no call waits for this. Whatever a secondary has is remembered before the next call
//! may need it.
//! Failure: everything is tried again, at least once a second.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cri_proto::v1;
use prost::Message;
use tokio_util::sync::CancellationToken;

use super::{Call, Proxy, Secondary};
use crate::backend::{Backend, Failure};
use crate::methods::Listing;
use crate::routes::PRIMARY;
use crate::state::{Kind, LastKnown};

/// Wait between attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Most time for the question about cgroups, which is not urgent.
const TIMEOUT: Duration = Duration::from_secs(5);

const LISTINGS: [Listing; 3] = [Listing::Sandboxes, Listing::Containers, Listing::Images];

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
const UPDATE: &str = "/runtime.v1.RuntimeService/UpdateRuntimeConfig";
const CONFIG: &str = "/runtime.v1.RuntimeService/RuntimeConfig";

impl Proxy {
    /// Watches all runtimes until `stop`.
    pub(crate) fn watch(self: &Arc<Self>, stop: &CancellationToken) {
        for index in 0..=self.secondaries.len() {
            let proxy = Arc::clone(self);
            let stop = stop.clone();
            tokio::spawn(async move {
                let _ = stop.run_until_cancelled(proxy.watch_one(index)).await;
            });
        }
    }

    async fn watch_one(&self, index: usize) {
        let secondary = index.checked_sub(1).and_then(|at| self.secondaries.get(at));
        let backend = secondary.map_or(&self.primary, |s| &s.backend);
        let name = &backend.name;
        let mut reported = None;
        loop {
            self.metrics.connected(name, false);
            let met = self.meet(backend, secondary).await;
            // One event per change, not per attempt.
            let reason = met.as_ref().err().map(Failure::reason);
            match (&met, &reason) {
                (Ok(_), _) => tracing::info!(backend = %name, "runtime connected"),
                (_, reason) if *reason == reported => {}
                (_, Some(reason)) => {
                    tracing::warn!(backend = %name, reason, "runtime unavailable");
                }
                (_, None) => {}
            }
            reported = reason;
            match met {
                Ok(generation) => {
                    self.metrics.connected(name, true);
                    backend.link.ended(generation).await;
                    tracing::warn!(backend = %name, "runtime disconnected");
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Connects and learns everything; gives the connection's number.
    async fn meet(&self, backend: &Backend, secondary: Option<&Secondary>) -> Result<u64, Failure> {
        let (_, generation) = backend.link.get().await.map_err(Failure::Down)?;
        let limit = self.limits.fanout_timeout.get();
        let version = Call::own(VERSION, "meet");
        let hello = version.copy(&Bytes::new());
        backend.unary_within(limit, version.name, hello).await?;
        if secondary.is_none() {
            self.answered.store(true, Ordering::Relaxed);
        }
        if let Some(secondary) = secondary {
            self.memory.connected(backend.index);
            for listing in LISTINGS {
                self.refresh(secondary, listing).await?;
            }
            self.catch_up(secondary).await;
        } else {
            for listing in LISTINGS {
                let call = Call::own(listing.path(), "meet");
                let request = call.copy(&Bytes::new());
                let list = backend.unary_within(TIMEOUT, call.name, request).await?;
                if let Some(kind) = listing.kind() {
                    self.memory.store_list(PRIMARY, kind, &list.message);
                }
            }
        }
        Ok(generation)
    }

    /// Sends a secondary the calls that it missed, and makes the calls that kubelet does not make
    /// to it.
    async fn catch_up(&self, secondary: &Secondary) {
        let missed = &self.runtime_config;
        let missed = missed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(missed) = missed {
            let request = Call::own(UPDATE, "meet").copy(&missed);
            // Only the primary's answer to this counts for kubelet.
            let _ = secondary.query("meet", request, &self.metrics).await;
        }
        let theirs = self.cgroup_driver(&secondary.backend).await;
        let ours = self.cgroup_driver(&self.primary).await;
        let same = ours.zip(theirs).map(|(ours, theirs)| ours == theirs);
        if same == Some(false) {
            let name = &*secondary.backend.name;
            tracing::warn!(backend = name, "cgroup driver differs from the primary's");
        }
        let known = &secondary.same_cgroup_driver;
        *known.lock().unwrap_or_else(PoisonError::into_inner) = same;
    }

    async fn cgroup_driver(&self, backend: &Backend) -> Option<i32> {
        let request = Call::own(CONFIG, "meet").copy(&Bytes::new());
        let answer = backend.unary_within(TIMEOUT, "meet", request).await.ok()?;
        let config = v1::RuntimeConfigResponse::decode(answer.message).ok()?;
        config.linux.map(|linux| linux.cgroup_driver)
    }

    /// Whether a secondary was ever there.
    pub(super) fn has_connected(&self, secondary: &Secondary) -> bool {
        let known = self
            .memory
            .last_list(secondary.backend.index, Kind::Sandbox);
        !matches!(known, LastKnown::NeverConnected)
    }
}
