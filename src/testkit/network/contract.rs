//! What every owner of networks does, the fake as well as `vmlet-tapmanager`: the same cases on both.
//!
//! The daemon is tested on the fake. This file is a module of `tapmanager/tests/real`, too, where the
//! program runs real plugins: what the program does is the contract.
//!
//! Invariant: a case uses the trait of the daemon alone, and leaves no network. Those of requests without
//! an answer are in [`loss`].
//! Failure: the case, by its function.

use std::fmt::Debug;

use podspec::SandboxId;
use tapmanager::client::Error;
use tapmanager::wire::{AddRequest, ErrorCode, Network, StartRequest};

use super::{PodNetwork, loss};

/// The pod of every request.
pub(crate) const POD: &str = "pod";

/// A request whose answer is lost after its effect.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lost {
    Add,
    Del,
    Start,
}

/// An owner of networks, and what makes it fail.
pub(crate) trait Rig {
    /// As the daemon uses it.
    type Network: PodNetwork;

    fn network(&self) -> Self::Network;

    /// Whether plugins refuse to attach pods.
    fn refuse_add(&self, refuse: bool);

    /// Plugins refuse to detach this pod.
    fn refuse_del(&self, id: &SandboxId);

    /// Plugins detach every pod again.
    fn accept_del(&self);

    /// Plugins wait from now on.
    fn hold_plugins(&self);

    /// Returns when a plugin waits.
    async fn held(&self);

    /// Plugins continue.
    fn release_plugins(&self);

    /// Ends the owner by `kill -9`.
    async fn leave(&mut self);

    /// Starts the next one after an end.
    async fn come_back(&mut self);

    /// The owner ends with the effect of the next such request, before it answers.
    fn lose_answer(&self, lost: Lost);
}

/// Every case.
pub(crate) async fn all(rig: &mut impl Rig) {
    assert!(rig.network().status().await.unwrap().ready);
    a_network_is_made_once_and_removed_again_and_again(rig).await;
    two_equal_requests_at_the_same_time_make_one_network(rig).await;
    another_request_for_the_same_sandbox_is_refused(rig).await;
    the_guest_has_the_nics_that_are_requested(rig).await;
    an_unknown_sandbox_has_no_network(rig).await;
    a_start_is_allowed_while_the_network_is_up(rig).await;
    a_refused_network_is_none(rig).await;
    a_network_that_is_not_removed_is_none_and_can_be_removed_later(rig).await;
    a_collection_takes_what_is_not_to_be_kept(rig).await;
    loss::all(rig).await;
    let left = rig.network().list().await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

pub(super) fn request(id: &SandboxId) -> AddRequest {
    AddRequest {
        id: id.to_string(),
        pod_name: POD.to_owned(),
        pod_namespace: "default".to_owned(),
        pod_uid: "uid".to_owned(),
        ..AddRequest::default()
    }
}

pub(super) fn start(id: &SandboxId) -> StartRequest {
    StartRequest {
        id: id.to_string(),
        cgroup_parent: String::new(),
        memory_bytes: 0,
        uid: None,
    }
}

fn refusal(outcome: Result<impl Debug, Error>) -> ErrorCode {
    match outcome {
        Err(Error::Refused(refusal)) => refusal.code,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn made(net: &impl PodNetwork, id: &SandboxId) -> Network {
    net.add(request(id)).await.unwrap()
}

/// The sandbox has no network, whatever is left of one.
pub(super) async fn has_none(net: &impl PodNetwork, id: &SandboxId) {
    assert_eq!(net.get(id).await.unwrap(), None);
    let starts = net.prepare_start(start(id)).await;
    assert_eq!(refusal(starts), ErrorCode::NotFound);
    assert_eq!(refusal(net.routes(id).await), ErrorCode::NotFound);
    let counters = net.counters().await.unwrap();
    assert!(counters.iter().all(|counted| counted.id != id.as_str()));
}

/// Nothing is left, also not a part.
pub(super) async fn is_gone(net: &impl PodNetwork, id: &SandboxId) {
    has_none(net, id).await;
    let listed = net.list().await.unwrap();
    assert!(!listed.contains(&id.to_string()), "{listed:?}");
}

pub(super) async fn removed(net: &impl PodNetwork, id: &SandboxId) {
    net.del(id).await.unwrap();
    is_gone(net, id).await;
}

async fn a_network_is_made_once_and_removed_again_and_again(rig: &impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    is_gone(&net, &id).await;
    let first = made(&net, &id).await;
    assert_eq!(first.id, id.to_string());
    assert!(!first.detached);
    assert_eq!(first.nics[0].link, "eth0");
    assert_eq!(made(&net, &id).await, first);
    assert_eq!(net.get(&id).await.unwrap(), Some(first));
    assert_eq!(net.list().await.unwrap(), [id.to_string()]);
    for _ in 0..2 {
        removed(&net, &id).await;
    }
    made(&net, &id).await;
    removed(&net, &id).await;
}

async fn two_equal_requests_at_the_same_time_make_one_network(rig: &impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    let (one, other) = tokio::join!(net.add(request(&id)), net.add(request(&id)));
    assert_eq!(one.unwrap(), other.unwrap());
    removed(&net, &id).await;
}

async fn another_request_for_the_same_sandbox_is_refused(rig: &impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    let network = made(&net, &id).await;
    let other = AddRequest {
        hostname: "other".to_owned(),
        ..request(&id)
    };
    assert_eq!(refusal(net.add(other).await), ErrorCode::Invalid);
    assert_eq!(net.get(&id).await.unwrap(), Some(network));
    removed(&net, &id).await;
}

async fn the_guest_has_the_nics_that_are_requested(rig: &impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    let with_mac = AddRequest {
        mac: "52:54:00:12:34:56".to_owned(),
        ..request(&id)
    };
    let network = net.add(with_mac).await.unwrap();
    assert_eq!(network.nics[0].mac, "52:54:00:12:34:56");
    removed(&net, &id).await;
    let without = AddRequest {
        detached: true,
        ..request(&id)
    };
    let network = net.add(without).await.unwrap();
    assert!(network.detached && !network.nics.is_empty());
    assert!(network.guest_nics().is_empty());
    removed(&net, &id).await;
}

async fn an_unknown_sandbox_has_no_network(rig: &impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    is_gone(&net, &id).await;
    removed(&net, &id).await;
    let went = net.gc(vec![id.to_string()]).await.unwrap();
    assert!(went.is_empty(), "{went:?}");
}

async fn a_start_is_allowed_while_the_network_is_up(rig: &impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    made(&net, &id).await;
    let first = net.prepare_start(start(&id)).await.unwrap().token;
    let second = net.prepare_start(start(&id)).await.unwrap().token;
    assert_ne!(first, second);
    for token in [first, second] {
        assert_eq!(token.len(), 64);
        assert!(token.bytes().all(|digit| digit.is_ascii_hexdigit()));
    }
    let odd = StartRequest {
        cgroup_parent: "no/path/of/a/cgroup".to_owned(),
        ..start(&id)
    };
    assert_eq!(refusal(net.prepare_start(odd).await), ErrorCode::Invalid);
    let counters = net.counters().await.unwrap();
    let links = counters[0].nics.iter().map(|nic| nic.link.as_str());
    assert_eq!(links.collect::<Vec<_>>(), ["eth0"]);
    let routes = net.routes(&id).await.unwrap();
    assert!(routes.is_some(), "an earlier version does not know them");
    removed(&net, &id).await;
}

async fn a_refused_network_is_none(rig: &impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    rig.refuse_add(true);
    for _ in 0..2 {
        let refused = net.add(request(&id)).await;
        assert_eq!(refusal(refused), ErrorCode::Plugin);
        has_none(&net, &id).await;
    }
    // A part of it may be left.
    removed(&net, &id).await;
    rig.refuse_add(false);
    made(&net, &id).await;
    removed(&net, &id).await;
}

async fn a_network_that_is_not_removed_is_none_and_can_be_removed_later(rig: &impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    made(&net, &id).await;
    rig.refuse_del(&id);
    for _ in 0..2 {
        assert_eq!(refusal(net.del(&id).await), ErrorCode::Plugin);
        has_none(&net, &id).await;
        assert_eq!(net.list().await.unwrap(), [id.to_string()]);
    }
    let over = net.add(request(&id)).await;
    assert_eq!(refusal(over), ErrorCode::Plugin, "nor is another made");
    rig.accept_del();
    made(&net, &id).await;
    removed(&net, &id).await;
}

async fn a_collection_takes_what_is_not_to_be_kept(rig: &impl Rig) {
    let net = rig.network();
    let mut ids = [(); 3].map(|()| SandboxId::generate());
    ids.sort();
    let [kept, gone, stuck] = ids;
    for id in [&kept, &gone, &stuck] {
        made(&net, id).await;
    }
    rig.refuse_del(&stuck);
    let went = net.gc(vec![kept.to_string()]).await.unwrap();
    assert_eq!(went, [gone.to_string()]);
    let left = [kept.to_string(), stuck.to_string()];
    assert_eq!(net.list().await.unwrap(), left);
    has_none(&net, &stuck).await;
    rig.accept_del();
    assert_eq!(net.gc(Vec::new()).await.unwrap(), left);
    is_gone(&net, &kept).await;
}
