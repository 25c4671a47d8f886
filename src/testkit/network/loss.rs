//! What every owner of networks does with requests that get no answer, and after its end.
//!
//! Invariant: as in [`contract`](super::contract), of which these cases are a part.
//! Failure: the case, by its function.

use std::fmt::Debug;

use podspec::SandboxId;
use tapmanager::client::Error;

use super::PodNetwork;
use super::contract::{Lost, Rig, has_none, is_gone, made, removed, request, start};

/// Every case of this file.
pub(super) async fn all(rig: &mut impl Rig) {
    a_request_that_is_given_up_is_carried_out(rig).await;
    a_removal_waits_for_what_is_being_made(rig).await;
    an_owner_that_is_away_is_not_reached(rig).await;
    an_owner_that_comes_back_has_what_it_had(rig).await;
    a_lost_answer_comes_again(rig).await;
    a_network_that_was_half_made_is_none(rig).await;
}

/// The connection ended before the answer.
fn is_lost<T: Debug>(outcome: &Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Protocol(_))), "{outcome:?}");
}

fn is_unreachable<T: Debug>(outcome: &Result<T, Error>) {
    let is_away = matches!(outcome, Err(Error::Unreachable { .. }));
    assert!(is_away, "{outcome:?}");
}

/// Gives a call up once a plugin waits for it.
async fn given_up<T>(call: impl Future<Output = T>, held: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        _ = call => panic!("no plugin waits"),
        () = held => {}
    }
}

/// As by a client whose deadline passes before the effect.
async fn a_request_that_is_given_up_is_carried_out(rig: &impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    rig.hold_plugins();
    given_up(net.add(request(&id)), rig.held()).await;
    assert_eq!(net.list().await.unwrap(), [id.to_string()]);
    rig.release_plugins();
    let network = net.get(&id).await.unwrap().expect("a network");
    assert_eq!(made(&net, &id).await, network);

    rig.hold_plugins();
    given_up(net.del(&id), rig.held()).await;
    assert_eq!(net.list().await.unwrap(), [id.to_string()]);
    rig.release_plugins();
    is_gone(&net, &id).await;
}

async fn a_removal_waits_for_what_is_being_made(rig: &impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    rig.hold_plugins();
    let removal = async {
        rig.held().await;
        let release = async {
            net.list().await.unwrap();
            rig.release_plugins();
        };
        tokio::join!(net.del(&id), release).0
    };
    let (made, removed) = tokio::join!(net.add(request(&id)), removal);
    made.unwrap();
    removed.unwrap();
    is_gone(&net, &id).await;
}

async fn an_owner_that_is_away_is_not_reached(rig: &mut impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    let network = made(&net, &id).await;
    rig.leave().await;
    let changes = async {
        let id = SandboxId::generate();
        let (add, del, gc) = tokio::join!(net.add(request(&id)), net.del(&id), net.gc(Vec::new()));
        is_unreachable(&add);
        is_unreachable(&del);
        is_unreachable(&gc);
    };
    let looks = async {
        let (get, list, routes) = tokio::join!(net.get(&id), net.list(), net.routes(&id));
        is_unreachable(&get);
        is_unreachable(&list);
        is_unreachable(&routes);
    };
    tokio::join!(changes, looks);
    is_unreachable(&net.status().await);
    is_unreachable(&net.counters().await);
    rig.come_back().await;
    assert_eq!(net.get(&id).await.unwrap(), Some(network));
    assert_eq!(net.list().await.unwrap(), [id.to_string()]);
    removed(&net, &id).await;
}

async fn an_owner_that_comes_back_has_what_it_had(rig: &mut impl Rig) {
    let net = rig.network();
    let [one, other] = [(); 2].map(|()| SandboxId::generate());
    let networks = [made(&net, &one).await, made(&net, &other).await];
    rig.leave().await;
    rig.come_back().await;
    let mut listed = [one.to_string(), other.to_string()];
    listed.sort();
    assert_eq!(net.list().await.unwrap(), listed);
    assert_eq!(net.get(&one).await.unwrap().as_ref(), Some(&networks[0]));
    assert_eq!(made(&net, &other).await, networks[1]);
    net.prepare_start(start(&one)).await.unwrap();
    for id in [&one, &other] {
        removed(&net, id).await;
    }
}

/// As by a client whose deadline passes after the effect.
async fn a_lost_answer_comes_again(rig: &mut impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    rig.lose_answer(Lost::Add);
    is_lost(&net.add(request(&id)).await);
    rig.come_back().await;
    let network = net.get(&id).await.unwrap().expect("a network");
    assert_eq!(made(&net, &id).await, network);

    rig.lose_answer(Lost::Start);
    is_lost(&net.prepare_start(start(&id)).await);
    rig.come_back().await;
    net.prepare_start(start(&id)).await.unwrap();

    rig.lose_answer(Lost::Del);
    is_lost(&net.del(&id).await);
    rig.come_back().await;
    is_gone(&net, &id).await;
    removed(&net, &id).await;
}

async fn a_network_that_was_half_made_is_none(rig: &mut impl Rig) {
    let net = rig.network();
    let id = SandboxId::generate();
    rig.hold_plugins();
    let death = async {
        rig.held().await;
        rig.leave().await;
    };
    let (made, ()) = tokio::join!(net.add(request(&id)), death);
    is_lost(&made);
    rig.release_plugins();
    rig.come_back().await;
    has_none(&net, &id).await;
    // A part of it may be left.
    removed(&net, &id).await;
}
