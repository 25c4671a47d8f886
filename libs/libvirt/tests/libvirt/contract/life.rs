//! A machine from its definition to its end.
//!
//! Invariant: a repeated call succeeds where the trait promises it.
//! Failure: the step.

use libvirt::{End, Error, Event, Hypervisor, Pause, Power, Shutdown, State, is_saved_memory};
use uuid::Uuid;

use super::{Rig, next};

pub(super) async fn begins_and_ends(rig: &Rig<impl Hypervisor>) {
    let hv = &rig.hypervisor;
    let id = rig.defined().await;
    let mut events = hv.events();
    let off = State::Inactive(End::Unknown);
    assert_eq!(hv.state(id).await.unwrap(), Some(off));
    for _ in 0..2 {
        hv.start(id).await.unwrap();
        assert_eq!(next(&mut events).await, Event::Started(id));
        assert_eq!(hv.power(id).await.unwrap(), Some(Power::On));
        hv.shutdown(id, Shutdown::Acpi).await.unwrap();
        assert_eq!(hv.state(id).await.unwrap(), Some(State::Active));
        // A definition of a running machine is for its next start.
        hv.define(rig.xml(id)).await.unwrap();
        assert_eq!(hv.state(id).await.unwrap(), Some(State::Active));
        let listed = hv.list().await.unwrap();
        let listed = listed.iter().find(|one| one.uuid == id).unwrap();
        assert_eq!((&*listed.container, listed.state), ("c", State::Active));
        hv.destroy(id).await.unwrap();
        hv.destroy(id).await.unwrap();
        let end = End::Destroyed;
        assert_eq!(next(&mut events).await, Event::Stopped(id, end));
        assert_eq!(hv.state(id).await.unwrap(), Some(State::Inactive(end)));
    }
    hv.undefine(id).await.unwrap();
    hv.undefine(id).await.unwrap();
    assert_eq!(hv.state(id).await.unwrap(), None);
    assert!(hv.list().await.unwrap().is_empty());
}

pub(super) async fn has_one_name(rig: &Rig<impl Hypervisor>) {
    let hv = &rig.hypervisor;
    let id = rig.defined().await;
    let same = rig.xml(Uuid::new_v4());
    let other = rig.xml(id).replace("<name>switched<", "<name>other<");
    for xml in [same, other, "<domain/>".to_owned(), "no XML".to_owned()] {
        let refused = hv.define(xml).await;
        assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    }
    assert_eq!(hv.list().await.unwrap().len(), 1);
    hv.undefine(id).await.unwrap();
}

pub(super) async fn is_paused(rig: &Rig<impl Hypervisor>) {
    let hv = &rig.hypervisor;
    let id = rig.defined().await;
    let power = async || hv.power(id).await.unwrap().unwrap();
    hv.start_paused_unless(id, std::future::pending())
        .await
        .unwrap();
    assert_eq!(power().await, Power::Paused(Pause::Asked));
    for _ in 0..2 {
        hv.resume(id).await.unwrap();
        assert_eq!(power().await, Power::On);
    }
    let mut events = hv.events();
    for _ in 0..2 {
        hv.suspend(id).await.unwrap();
        assert_eq!(power().await, Power::Paused(Pause::Asked));
    }
    assert_eq!(hv.state(id).await.unwrap(), Some(State::Active));
    hv.destroy(id).await.unwrap();
    assert_eq!(next(&mut events).await, Event::Stopped(id, End::Destroyed));
    assert_eq!(power().await, Power::Off);
    // The next start does not begin paused.
    hv.start(id).await.unwrap();
    assert_eq!(power().await, Power::On);
    rig.remove(id).await;
}

pub(super) async fn is_saved_and_restored(rig: &Rig<impl Hypervisor>) {
    let hv = &rig.hypervisor;
    let id = rig.running().await;
    let mut events = hv.events();
    let file = rig.file("saved");
    let restore = async |file| {
        let never = std::future::pending();
        hv.restore(rig.xml(id), file, never).await
    };
    for _ in 0..2 {
        hv.save(id, file.clone()).await.unwrap();
        assert!(is_saved_memory(&file));
        let end = Event::Stopped(id, End::Saved);
        assert_eq!(next(&mut events).await, end);
        let state = hv.state(id).await.unwrap();
        assert_eq!(state, Some(State::Inactive(End::Saved)));
        restore(file.clone()).await.unwrap();
        assert_eq!(next(&mut events).await, Event::Started(id));
        let power = hv.power(id).await.unwrap();
        assert_eq!(power, Some(Power::Paused(Pause::Asked)));
        let again = restore(file.clone()).await;
        assert!(matches!(again, Err(Error::Refused { .. })), "{again:?}");
        assert!(is_saved_memory(&file), "a restore leaves the file");
        hv.resume(id).await.unwrap();
        assert_eq!(hv.power(id).await.unwrap(), Some(Power::On));
    }
    hv.destroy(id).await.unwrap();
    let garbage = rig.file("garbage");
    std::fs::write(&garbage, "no memory").unwrap();
    let refused = restore(garbage).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    let state = hv.state(id).await.unwrap();
    assert_eq!(state, Some(State::Inactive(End::Destroyed)));
    hv.undefine(id).await.unwrap();
}
