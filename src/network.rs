//! The trait for the tapmanager.
//!
//! Invariant: `add` and `del` may be repeated; after `del` nothing of the sandbox's network is
//! left.
//! Failure: the client's error states whether the tapmanager could not be reached or refused.

use std::future::Future;

use podspec::SandboxId;
use tapmanager::client::{Client, Error};
use tapmanager::wire::{
    AddRequest, ErrorCode, Network, Permit, PodRoute, SandboxCounters, StartRequest, Status,
};

/// Makes and removes the networks of sandboxes.
pub trait PodNetwork: Send + Sync + 'static {
    /// Makes the network of a sandbox, or returns the one that exists.
    fn add(&self, request: AddRequest) -> impl Future<Output = Result<Network, Error>> + Send;
    /// The network of a sandbox, if it has one.
    fn get(&self, id: &SandboxId) -> impl Future<Output = Result<Option<Network>, Error>> + Send;
    /// Takes a network down; success when there is none.
    fn del(&self, id: &SandboxId) -> impl Future<Output = Result<(), Error>> + Send;
    /// Ids of everything that has a network or a part of one.
    fn list(&self) -> impl Future<Output = Result<Vec<String>, Error>> + Send;
    /// Takes down every network but those of the ids named; returns the ids whose network went.
    fn gc(&self, keep: Vec<String>) -> impl Future<Output = Result<Vec<String>, Error>> + Send;
    /// Traffic of all guests; what is being worked on is left out.
    fn counters(&self) -> impl Future<Output = Result<Vec<SandboxCounters>, Error>> + Send;
    /// Whether networks can be made.
    fn status(&self) -> impl Future<Output = Result<Status, Error>> + Send;
    /// The addresses of a guest that the node reaches; `None` when a tapmanager of an earlier version
    /// does not know them.
    fn routes(
        &self,
        id: &SandboxId,
    ) -> impl Future<Output = Result<Option<Vec<PodRoute>>, Error>> + Send;
    /// What one emulator needs to fetch its descriptors.
    fn prepare_start(
        &self,
        request: StartRequest,
    ) -> impl Future<Output = Result<Permit, Error>> + Send;
}

impl PodNetwork for Client {
    async fn add(&self, request: AddRequest) -> Result<Network, Error> {
        Self::add(self, request).await
    }

    async fn get(&self, id: &SandboxId) -> Result<Option<Network>, Error> {
        match Self::get(self, id.as_str()).await {
            Ok(network) => Ok(Some(network)),
            Err(Error::Refused(e)) if e.code == ErrorCode::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn del(&self, id: &SandboxId) -> Result<(), Error> {
        Self::del(self, id.as_str()).await
    }

    async fn list(&self) -> Result<Vec<String>, Error> {
        Self::list(self).await
    }

    async fn gc(&self, keep: Vec<String>) -> Result<Vec<String>, Error> {
        Self::gc(self, keep).await
    }

    async fn counters(&self) -> Result<Vec<SandboxCounters>, Error> {
        Self::counters(self).await
    }

    async fn status(&self) -> Result<Status, Error> {
        Self::status(self).await
    }

    async fn routes(&self, id: &SandboxId) -> Result<Option<Vec<PodRoute>>, Error> {
        match Self::routes(self, id.as_str()).await {
            Ok(routes) => Ok(Some(routes)),
            Err(Error::Refused(e)) if e.code == ErrorCode::Invalid => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn prepare_start(&self, request: StartRequest) -> Result<Permit, Error> {
        Self::prepare_start(self, request).await
    }
}
