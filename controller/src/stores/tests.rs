//! Watch events in, changes out.
//!
//! Invariant: each test drives one feed, as one watch would.
//! Failure: the assertion shows what was reported.

use std::sync::Arc;

use crds::VirtualMachine;
use crds::guard::Guarded;
use kube::runtime::watcher::Event;
use serde_json::json;

use super::{Change, Feeds, Key, Relation, Stores};

fn vm(name: &str, version: u32) -> VirtualMachine {
    let mut vm = VirtualMachine::new(name, Default::default());
    vm.metadata.namespace = Some("default".to_owned());
    vm.metadata.uid = Some(format!("uid-of-{name}"));
    vm.metadata.resource_version = Some(version.to_string());
    vm
}

fn list(feeds: &mut Feeds, vms: &[VirtualMachine]) -> Vec<String> {
    assert!(feeds.vms.apply(Event::Init).is_empty());
    for vm in vms {
        assert!(feeds.vms.apply(Event::InitApply(vm.clone())).is_empty());
    }
    changes_of(&feeds.vms.apply(Event::InitDone))
}

fn changes_of(changes: &[Change<VirtualMachine>]) -> Vec<String> {
    let name = |vm: &Arc<VirtualMachine>| vm.metadata.name.clone().unwrap_or_default();
    let word = |change: &Change<VirtualMachine>| match change {
        Change::Created { object, initial } => {
            format!("create {} initial={initial}", name(object))
        }
        Change::Updated { new, unchanged, .. } => {
            format!("update {} unchanged={unchanged}", name(new))
        }
        Change::Deleted { last, certain } => format!("delete {} certain={certain}", name(last)),
    };
    changes.iter().map(word).collect()
}

#[test]
fn only_the_first_listing_is_initial() {
    let (_, mut feeds) = Stores::new();
    let first = list(&mut feeds, &[vm("a", 1)]);
    assert_eq!(first, ["create a initial=true"]);
    let again = list(&mut feeds, &[vm("a", 1), vm("b", 2)]);
    assert_eq!(again, ["update a unchanged=true", "create b initial=false"]);
}

#[test]
fn a_listing_that_was_broken_off_is_not_the_first_one() {
    let (_, mut feeds) = Stores::new();
    feeds.vms.apply(Event::Init);
    feeds.vms.apply(Event::InitApply(vm("gone", 1)));
    let changes_of = list(&mut feeds, &[vm("a", 1)]);
    assert_eq!(changes_of, ["create a initial=true"]);
}

#[test]
fn what_a_listing_misses_was_deleted_in_an_unknown_state() {
    let (stores, mut feeds) = Stores::new();
    list(&mut feeds, &[vm("a", 1), vm("b", 2)]);
    let changes_of = list(&mut feeds, &[vm("b", 3)]);
    assert_eq!(
        changes_of,
        ["delete a certain=false", "update b unchanged=false"]
    );
    assert!(stores.vm(&Key::new("default", "a")).is_none());
}

#[test]
fn an_object_that_was_made_again_is_another_one() {
    let (_, mut feeds) = Stores::new();
    list(&mut feeds, &[vm("a", 1)]);
    let mut other = vm("a", 9);
    other.metadata.uid = Some("another".to_owned());
    let changes_of = list(&mut feeds, &[other]);
    assert_eq!(
        changes_of,
        ["delete a certain=false", "create a initial=false"]
    );
}

#[test]
fn a_change_carries_both_versions() {
    let (_, mut feeds) = Stores::new();
    list(&mut feeds, &[vm("a", 1)]);
    let changes = feeds.vms.apply(Event::Apply(vm("a", 2)));
    let [
        Change::Updated {
            old,
            new,
            unchanged: false,
        },
    ] = changes.as_slice()
    else {
        panic!("{changes:?}");
    };
    assert_eq!(old.metadata.resource_version.as_deref(), Some("1"));
    assert_eq!(new.metadata.resource_version.as_deref(), Some("2"));
}

#[test]
fn an_end_is_reported_once() {
    let (_, mut feeds) = Stores::new();
    list(&mut feeds, &[vm("a", 1)]);
    let end = feeds.vms.apply(Event::Delete(vm("a", 2)));
    assert_eq!(changes_of(&end), ["delete a certain=true"]);
    assert!(feeds.vms.apply(Event::Delete(vm("a", 2))).is_empty());
}

#[test]
fn a_resync_reports_every_object_as_unchanged() {
    let (_, mut feeds) = Stores::new();
    list(&mut feeds, &[vm("a", 1)]);
    assert_eq!(changes_of(&feeds.vms.resync()), ["update a unchanged=true"]);
}

#[test]
fn the_store_holds_an_object_before_its_change_is_announced() {
    let (stores, mut feeds) = Stores::new();
    list(&mut feeds, &[]);
    let changes = feeds.vms.apply(Event::Apply(vm("a", 1)));
    assert_eq!(changes_of(&changes), ["create a initial=false"]);
    assert!(stores.vm(&Key::new("default", "a")).is_some());
}

#[test]
fn machines_are_found_by_what_they_name_as_long_as_they_do() {
    let (stores, mut feeds) = Stores::new();
    let class = |name: &str| Relation::Class(Key::new("default", name));
    let mut a = vm("a", 1);
    a.spec.class_name = Some("small".to_owned());
    list(&mut feeds, &[a.clone()]);
    assert_eq!(stores.vms_with(&class("small")).len(), 1);
    a.spec.class_name = Some("large".to_owned());
    a.metadata.resource_version = Some("2".to_owned());
    feeds.vms.apply(Event::Apply(a.clone()));
    assert!(stores.vms_with(&class("small")).is_empty());
    assert_eq!(stores.vms_with(&class("large")).len(), 1);
    feeds.vms.apply(Event::Delete(a));
    assert!(stores.index.vms_with(&class("large")).is_empty());
}

#[test]
fn a_listing_that_misses_a_machine_takes_it_out_of_the_index() {
    let (stores, mut feeds) = Stores::new();
    let mut a = vm("a", 1);
    a.spec.image_name = Some("disk".to_owned());
    list(&mut feeds, &[a]);
    let image = Relation::Image(Key::new("", "disk"));
    assert_eq!(stores.index.vms_with(&image).len(), 1);
    list(&mut feeds, &[]);
    assert!(stores.index.vms_with(&image).is_empty());
}

/// A machine with the UID of [`vm`], as the API server could send it.
fn unreadable(name: &str, uid: &str) -> Guarded<VirtualMachine> {
    let object = json!({
        "metadata": { "name": name, "namespace": "default", "uid": uid, "resourceVersion": "9" },
        "spec": 7,
    });
    serde_json::from_value(object).unwrap()
}

fn readable(feeds: &mut Feeds, event: Event<Guarded<VirtualMachine>>) -> Vec<String> {
    let event = feeds.vms.readable(event);
    changes_of(&event.map_or_else(Vec::new, |event| feeds.vms.apply(event)))
}

#[tokio::test]
async fn a_store_is_filled_although_an_object_cannot_be_read() {
    let (stores, mut feeds) = Stores::new();
    let good = Guarded(Ok(vm("good", 1)));
    readable(&mut feeds, Event::Init);
    readable(
        &mut feeds,
        Event::InitApply(unreadable("bad", "uid-of-bad")),
    );
    readable(&mut feeds, Event::InitApply(good));
    let changes = readable(&mut feeds, Event::InitDone);
    assert_eq!(changes, ["create good initial=true"]);
    stores.vms.wait_until_ready().await.unwrap();
    assert!(stores.vm(&Key::new("default", "bad")).is_none());
}

#[test]
fn an_object_that_can_no_longer_be_read_stays_as_it_was_until_it_is_deleted() {
    let (stores, mut feeds) = Stores::new();
    let known = |stores: &Stores| {
        let vm = stores.vm(&Key::new("default", "a"));
        vm.and_then(|vm| vm.metadata.resource_version.clone())
    };
    list(&mut feeds, &[vm("a", 1)]);
    let none = readable(&mut feeds, Event::Apply(unreadable("a", "uid-of-a")));
    assert!(none.is_empty(), "{none:?}");
    assert_eq!(known(&stores).as_deref(), Some("1"));
    readable(&mut feeds, Event::Init);
    readable(&mut feeds, Event::InitApply(unreadable("a", "uid-of-a")));
    let listed = readable(&mut feeds, Event::InitDone);
    assert_eq!(listed, ["update a unchanged=true"]);
    let gone = readable(&mut feeds, Event::Delete(unreadable("a", "uid-of-a")));
    assert_eq!(gone, ["delete a certain=true"]);
    // Another object of that name was never known.
    list(&mut feeds, &[vm("a", 1)]);
    readable(&mut feeds, Event::Init);
    readable(&mut feeds, Event::InitApply(unreadable("a", "another")));
    let listed = readable(&mut feeds, Event::InitDone);
    assert_eq!(listed, ["delete a certain=false"]);
}

#[test]
fn what_is_never_read_is_not_kept() {
    let (stores, mut feeds) = Stores::new();
    let mut a = vm("a", 1);
    a.metadata.managed_fields = Some(vec![Default::default()]);
    let last = "kubectl.kubernetes.io/last-applied-configuration";
    let annotations = [(last, "{}"), ("example.com/mine", "x")];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
    a.metadata.annotations = Some(annotations.into());
    list(&mut feeds, &[a]);
    let kept = stores.vm(&Key::new("default", "a")).unwrap();
    let keys = kept.metadata.annotations.iter().flat_map(|all| all.keys());
    assert_eq!(keys.collect::<Vec<_>>(), ["example.com/mine"]);
    assert!(
        kept.metadata
            .managed_fields
            .as_ref()
            .is_none_or(Vec::is_empty)
    );
}
