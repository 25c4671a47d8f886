//! The fake behaves as the real hypervisor does in `daemon.rs`, and its knobs do what they say.
//!
//! Invariant: no libvirt, no waiting.
//! Failure: a service tested against a fake that differs from the real one proves nothing.

use std::time::Duration;

use libvirt::{End, Error, Event, FakeHypervisor, Hypervisor, Shutdown, State};
use serde_json::{Value, json};
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(7);

fn xml(id: Uuid, name: &str) -> String {
    format!(
        r#"<domain type="qemu"><name>{name}</name><uuid>{id}</uuid><metadata>
        <vmlet:vm xmlns:vmlet="https://vmlet.dev/domain/1" container="c-{name}"/></metadata>
        <devices><disk/><disk/><controller/></devices></domain>"#
    )
}

async fn defined(hv: FakeHypervisor) -> FakeHypervisor {
    hv.define(xml(ID, "a")).await.unwrap();
    hv
}

#[tokio::test]
async fn a_domain_is_defined_started_stopped_and_undefined() {
    let hv = defined(FakeHypervisor::default()).await;
    let mut events = hv.events();
    assert_eq!(
        hv.state(ID).await.unwrap(),
        Some(State::Inactive(End::Unknown))
    );
    hv.start(ID).await.unwrap();
    assert!(matches!(hv.start(ID).await, Err(Error::Refused { .. })));
    assert!(matches!(hv.undefine(ID).await, Err(Error::Refused { .. })));
    assert_eq!(hv.list().await.unwrap()[0].container, "c-a");
    hv.shutdown(ID, Shutdown::Acpi).await.unwrap();
    hv.start(ID).await.unwrap();
    hv.destroy(ID).await.unwrap();
    hv.destroy(ID).await.unwrap();
    hv.undefine(ID).await.unwrap();
    hv.undefine(ID).await.unwrap();
    assert_eq!(hv.state(ID).await.unwrap(), None);
    let expected = [
        Event::Started(ID),
        Event::Stopped(ID, End::GuestShutdown),
        Event::Started(ID),
        Event::Stopped(ID, End::Destroyed),
    ];
    for event in expected {
        assert_eq!(events.try_recv().unwrap(), event);
    }
    assert!(events.try_recv().is_err());
}

#[tokio::test]
async fn a_name_belongs_to_one_uuid() {
    let hv = defined(FakeHypervisor::default()).await;
    hv.define(xml(ID, "a")).await.unwrap();
    let other = Uuid::from_u128(8);
    assert!(matches!(
        hv.define(xml(other, "a")).await,
        Err(Error::Refused { .. })
    ));
    assert!(matches!(
        hv.define(xml(ID, "b")).await,
        Err(Error::Refused { .. })
    ));
    assert!(matches!(
        hv.define("<domain/>".to_owned()).await,
        Err(Error::Refused { .. })
    ));
}

#[tokio::test]
async fn a_refused_start_leaves_the_domain_off() {
    let hv = defined(FakeHypervisor::default().refusing_start("no memory")).await;
    let error = hv.start(ID).await.unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
    assert_eq!(
        hv.state(ID).await.unwrap(),
        Some(State::Inactive(End::Unknown))
    );
    hv.accept_starts();
    hv.start(ID).await.unwrap();
}

#[tokio::test]
async fn an_unresponsive_guest_keeps_running_and_a_disconnect_hides_an_end() {
    let hv = defined(FakeHypervisor::default().guest_ignores_shutdown()).await;
    hv.start(ID).await.unwrap();
    hv.shutdown(ID, Shutdown::Acpi).await.unwrap();
    assert_eq!(hv.state(ID).await.unwrap(), Some(State::Active));
    assert_eq!(hv.shutdowns(), [(ID, Shutdown::Acpi)]);

    let mut events = hv.events();
    hv.disconnect();
    hv.power_off(ID);
    assert!(hv.state(ID).await.unwrap_err().is_unavailable());
    hv.reconnect();
    assert_eq!(
        hv.state(ID).await.unwrap(),
        Some(State::Inactive(End::GuestShutdown))
    );
    assert_eq!(events.try_recv().unwrap(), Event::Disconnected);
    assert_eq!(events.try_recv().unwrap(), Event::Connected);
    assert!(events.try_recv().is_err());
}

#[tokio::test]
async fn an_agent_answers_in_turn_and_then_falls_silent() {
    let hv = defined(FakeHypervisor::default().agent_answering([json!({"pid": 1})])).await;
    let query = || hv.agent(ID, json!({"execute": "guest-exec"}), Duration::from_secs(1));
    assert!(matches!(query().await, Err(Error::NoAgent { .. })));
    hv.start(ID).await.unwrap();
    let answer: Value = query().await.unwrap().read(100).unwrap();
    assert_eq!(answer, json!({"pid": 1}));
    assert!(matches!(query().await, Err(Error::Agent { .. })));
    assert_eq!(hv.agent_commands().len(), 2);
    hv.shutdown(ID, Shutdown::Agent).await.unwrap();
    assert_eq!(
        hv.state(ID).await.unwrap(),
        Some(State::Inactive(End::GuestShutdown))
    );
}
