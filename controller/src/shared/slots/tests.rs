//! Who is let in, and who is next.
//!
//! Invariant: no task is in the store unless a test specifies it: reservations alone count.
//! Failure: none of its own.

use tokio::sync::mpsc::Receiver;

use crate::shared::slots::*;

const ONE: Limits = Limits {
    cluster: 1,
    node: 1,
};

const NOTHING: Made<'_> = Made {
    tasks: &[],
    works: &|_| true,
};

fn take(slots: &Slots, uid: &str, node: Option<&str>, limits: Limits, now: i64) -> Option<Slot> {
    let key = Key::new("ns", uid);
    let key = &key;
    let request = SlotRequest { uid, key, node };
    slots.take(request, NOTHING, limits, now)
}

#[test]
fn a_slot_that_is_dropped_is_free_again() {
    let slots = Slots::default();
    let first = take(&slots, "a", None, ONE, 0).unwrap();
    assert!(take(&slots, "b", None, ONE, 0).is_none());
    drop(first);
    assert!(take(&slots, "b", None, ONE, 0).is_some());
}

#[test]
fn a_reserved_slot_counts_for_other_machines_and_expires() {
    let slots = Slots::default();
    take(&slots, "a", Some("n"), ONE, 0).unwrap().keep();
    assert!(take(&slots, "b", None, ONE, TIMEOUT - 1).is_none());
    assert!(take(&slots, "a", Some("n"), ONE, 1).is_some());
    take(&slots, "a", Some("n"), ONE, 0).unwrap().keep();
    assert!(take(&slots, "b", None, ONE, TIMEOUT).is_some());
}

#[test]
fn a_node_has_a_limit_of_its_own_and_zero_means_one() {
    let slots = Slots::default();
    let limits = Limits {
        cluster: 5,
        node: 0,
    };
    take(&slots, "a", Some("n"), limits, 0).unwrap().keep();
    assert!(take(&slots, "b", Some("n"), limits, 0).is_none());
    assert!(take(&slots, "b", Some("m"), limits, 0).is_some());
}

fn subscribe(slots: &Slots) -> Receiver<Key> {
    let (sender, receiver) = mpsc::channel(8);
    slots.wake_by(sender);
    receiver
}

fn pass_on(slots: &Slots, receiver: &mut Receiver<Key>, limits: Limits, now: i64) -> Vec<String> {
    slots.pass_on(Vec::new, &|_| true, |_, uid| uid != "gone", limits, now);
    std::iter::from_fn(|| receiver.try_recv().ok())
        .map(|key| key.name)
        .collect()
}

#[test]
fn waiting_machines_are_woken_in_order_and_keep_a_reserved_slot() {
    let slots = Slots::default();
    let mut receiver = subscribe(&slots);
    let first = take(&slots, "a", None, ONE, 0).unwrap();
    for uid in ["gone", "b", "c", "b"] {
        assert!(take(&slots, uid, None, ONE, 0).is_none());
    }
    assert!(pass_on(&slots, &mut receiver, ONE, 0).is_empty());
    drop(first);
    assert_eq!(pass_on(&slots, &mut receiver, ONE, 1), ["b"]);
    assert!(pass_on(&slots, &mut receiver, ONE, 1).is_empty(), "once");
    assert!(take(&slots, "c", None, ONE, 2).is_none(), "it is not his");
    drop(take(&slots, "b", None, ONE, 2).unwrap());
    assert_eq!(pass_on(&slots, &mut receiver, ONE, 3), ["c"]);
    // He never comes.
    assert!(take(&slots, "d", None, ONE, 4).is_none());
    assert!(pass_on(&slots, &mut receiver, ONE, TIMEOUT).is_empty());
    assert_eq!(pass_on(&slots, &mut receiver, ONE, TIMEOUT + 3), ["d"]);
}

#[test]
fn a_wait_for_a_full_node_delays_no_other_machine() {
    let slots = Slots::default();
    let mut receiver = subscribe(&slots);
    let two = Limits {
        cluster: 2,
        node: 1,
    };
    let here = take(&slots, "a", Some("n"), two, 0).unwrap();
    let other = take(&slots, "b", Some("m"), two, 0).unwrap();
    for (uid, node) in [("c", "n"), ("d", "m")] {
        assert!(take(&slots, uid, Some(node), two, 0).is_none());
    }
    drop(other);
    assert_eq!(pass_on(&slots, &mut receiver, two, 1), ["d"]);
    drop(here);
    assert_eq!(pass_on(&slots, &mut receiver, two, 1), ["c"]);
}

/// What returns to work begins with its share, not with all that was asked of it meanwhile.
#[test]
fn tasks_of_a_broken_node_delay_only_its_own_machines() {
    let slots = Slots::default();
    let mut spec: crds::VirtualMachineTaskSpec = serde_json::from_value(serde_json::json!({
        "nodeName": "n", "vmName": "a", "vmUID": "a", "kind": "Provision",
    }))
    .unwrap();
    let one = Arc::new(VirtualMachineTask::new("a", spec.clone()));
    spec.vm_uid = "b".to_owned();
    let tasks = &[one, Arc::new(VirtualMachineTask::new("b", spec))];
    let two = Limits {
        cluster: 2,
        node: 2,
    };
    let asks = |uid: &str, node: Option<&str>, is_working: bool| {
        let works = &|_: &str| is_working;
        let key = &Key::new("ns", uid);
        let request = SlotRequest { uid, key, node };
        let made = Made { tasks, works };
        slots.take(request, made, two, 0).is_some()
    };
    assert!(!asks("c", None, true));
    assert!(!asks("c", Some("n"), false));
    assert!(asks("c", None, false) && asks("c", Some("m"), false));
    assert!(!asks("c", Some("m"), true), "they count again");
}
