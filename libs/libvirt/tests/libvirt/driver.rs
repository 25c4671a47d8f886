//! The connection against libvirt's own test driver, which lives in this process.
//!
//! Invariant: no daemon, no root; one test, since the driver's state is shared within the process.
//! Failure: a broken callback or a missed event ends in a deadline.

use std::time::Duration;

use libvirt::{End, Error, Event, Hypervisor, Libvirt, Settings, Shutdown, State};
use tokio::sync::broadcast::Receiver;
use uuid::Uuid;

const XML: &str = r#"<domain type="test">
  <name>vm-under-test</name>
  <uuid>6c0f3f6e-64a1-4a0d-9b7b-1d8f1f2f3a4b</uuid>
  <metadata><vmlet:vm xmlns:vmlet="https://vmlet.dev/domain/1" container="c-1" sandbox="s-1"/></metadata>
  <memory unit="MiB">16</memory>
  <os><type>hvm</type></os>
</domain>"#;

async fn next(events: &mut Receiver<Event>) -> Event {
    tokio::time::timeout(Duration::from_secs(60), events.recv())
        .await
        .expect("an event in time")
        .expect("an open channel")
}

#[tokio::test]
async fn the_test_driver_runs_and_ends_a_domain() {
    let hv = Libvirt::connect("test:///default".to_owned(), Settings::default());
    let mut events = hv.events();
    assert_eq!(next(&mut events).await, Event::Connected);
    assert!(hv.is_connected());
    assert!(!hv.versions().await.unwrap().libvirt.is_empty());

    let id = Uuid::parse_str("6c0f3f6e-64a1-4a0d-9b7b-1d8f1f2f3a4b").unwrap();
    assert_eq!(hv.state(id).await.unwrap(), None);
    assert!(matches!(hv.start(id).await, Err(Error::NoDomain(gone)) if gone == id));
    hv.destroy(id).await.unwrap();
    hv.undefine(id).await.unwrap();
    hv.shutdown(id, Shutdown::Acpi).await.unwrap();
    assert!(matches!(
        hv.define("<domain/>".to_owned()).await,
        Err(Error::Refused { .. })
    ));
    assert!(matches!(
        hv.define("a\0b".to_owned()).await,
        Err(Error::Refused { .. })
    ));

    hv.define(XML.to_owned()).await.unwrap();
    hv.define(XML.to_owned()).await.unwrap();
    assert_eq!(
        hv.state(id).await.unwrap(),
        Some(State::Inactive(End::Unknown))
    );
    hv.start(id).await.unwrap();
    assert_eq!(next(&mut events).await, Event::Started(id));
    assert_eq!(hv.state(id).await.unwrap(), Some(State::Active));
    assert!(matches!(hv.undefine(id).await, Err(Error::Refused { .. })));

    let stats = hv.stats().await.unwrap();
    let ours = stats.iter().find(|s| s.domain == id).unwrap();
    assert!(ours.cpu_nanoseconds.is_none_or(|used| used > 0));

    // The driver comes with a domain of its own, which is not ours to see.
    let list = hv.list().await.unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!((list[0].uuid, list[0].name.as_str()), (id, "vm-under-test"));
    assert_eq!(
        (list[0].container.as_str(), list[0].state),
        ("c-1", State::Active)
    );

    hv.destroy(id).await.unwrap();
    assert_eq!(next(&mut events).await, Event::Stopped(id, End::Destroyed));
    hv.destroy(id).await.unwrap();
    assert_eq!(
        hv.state(id).await.unwrap(),
        Some(State::Inactive(End::Destroyed))
    );
    hv.undefine(id).await.unwrap();
    assert!(hv.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn without_libvirt_every_call_fails_at_once() {
    let uri = "qemu+unix:///system?socket=/nonexistent/libvirt-sock".to_owned();
    let hv = Libvirt::connect(uri, Settings::default());
    let calls = async {
        assert!(hv.list().await.unwrap_err().is_unavailable());
        assert!(
            hv.define(XML.to_owned())
                .await
                .unwrap_err()
                .is_unavailable()
        );
        let agent = hv.agent(Uuid::nil(), serde_json::json!({}), Duration::from_secs(60));
        assert!(agent.await.unwrap_err().is_unavailable());
    };
    tokio::time::timeout(Duration::from_secs(30), calls)
        .await
        .expect("no waiting");
    assert!(!hv.is_connected());
}
