//! Which of a machine's tasks is sent to the daemon first: it runs them in the order in which they
//! arrive.
//!
//! Invariant: tasks from a watch are in the order of its events, which is that of their creation;
//! only those of one list are in the order of their times, which have seconds and a clock. A task
//! is sent once all that precede it have been taken, refused or ended.
//! Failure: tasks of one list that were made in the same second stand in the order of their names.

use std::collections::{HashMap, HashSet};

use super::decide::{Entry, is_unsent};
use super::object::Uid;

/// Gives the places.
#[derive(Debug, Default)]
pub(super) struct Turns {
    last: u64,
}

impl Turns {
    /// A watch event contained this task.
    pub(super) fn notified(&mut self, entry: &mut Entry) {
        if entry.place.is_none() {
            self.last += 1;
            entry.place = Some(self.last);
        }
    }

    /// A list is complete.
    pub(super) fn listed(&mut self, entries: &mut HashMap<Uid, Entry>) {
        let new = entries.values_mut().filter(|entry| entry.place.is_none());
        let mut new: Vec<_> = new.filter(|entry| entry.object.is_some()).collect();
        let age = |entry: &&mut Entry| {
            let object = entry.object.as_ref();
            object.map(|o| (o.made, o.namespace.clone(), o.name.clone()))
        };
        new.sort_by_cached_key(age);
        new.into_iter().for_each(|entry| self.notified(entry));
    }
}

/// Those that are not to be sent yet.
pub(super) fn behind(entries: &HashMap<Uid, Entry>) -> HashSet<Uid> {
    let mut first: HashMap<&str, (u64, &Uid)> = HashMap::new();
    let mut behind = HashSet::new();
    for (uid, entry) in entries.iter().filter(|(_, entry)| is_unsent(entry)) {
        let spec = entry.object.as_ref().and_then(|o| o.spec.as_ref().ok());
        let Some((spec, place)) = spec.zip(entry.place) else {
            behind.insert(uid.clone());
            continue;
        };
        let mine = (place, uid);
        let best = first.entry(&spec.vm_uid).or_insert(mine);
        if mine < *best {
            behind.insert(best.1.clone());
            *best = mine;
        } else if mine != *best {
            behind.insert(uid.clone());
        }
    }
    behind
}

#[cfg(test)]
mod tests {
    use nodeapi::v1::TaskStatus;

    use super::super::object::Object;
    use super::*;

    fn object(uid: &str, vm: &str, made: i64) -> Object {
        let spec = serde_json::json!({
            "nodeName": "n", "vmName": "vm", "vmUID": vm, "kind": "Reset",
        });
        Object {
            uid: uid.to_owned(),
            namespace: "ns".to_owned(),
            name: uid.to_owned(),
            machine: None,
            spec: Ok(serde_json::from_value(spec).unwrap()),
            status: crds::VirtualMachineTaskStatus::default(),
            made,
            going: false,
            ours: false,
        }
    }

    fn add(entries: &mut HashMap<Uid, Entry>, uid: &str, vm: &str, made: i64) {
        let entry = entries.entry(uid.to_owned()).or_default();
        entry.object = Some(object(uid, vm, made));
    }

    fn waiting(entries: &HashMap<Uid, Entry>) -> Vec<Uid> {
        let mut all: Vec<_> = behind(entries).into_iter().collect();
        all.sort();
        all
    }

    #[test]
    fn a_machines_tasks_are_sent_one_after_the_other_as_they_were_made() {
        let mut turns = Turns::default();
        let mut entries = HashMap::new();
        add(&mut entries, "a", "vm", 20);
        add(&mut entries, "b", "vm", 10);
        add(&mut entries, "c", "other", 30);
        assert_eq!(
            waiting(&entries),
            ["a", "b", "c"],
            "the list is not complete"
        );
        turns.listed(&mut entries);
        // The API server's clock was put back meanwhile.
        add(&mut entries, "d", "vm", 5);
        turns.notified(entries.get_mut("d").unwrap());
        assert_eq!(waiting(&entries), ["a", "d"]);
        entries.get_mut("b").unwrap().reported = Some(TaskStatus::default());
        turns.listed(&mut entries);
        assert_eq!(waiting(&entries), ["d"]);
        entries.get_mut("a").unwrap().refused = Some("it cannot".to_owned());
        assert_eq!(waiting(&entries), Vec::<Uid>::new());
    }

    #[test]
    fn a_cancelled_or_ended_task_blocks_no_other_task() {
        let mut turns = Turns::default();
        let mut entries = HashMap::new();
        for (uid, made) in [("a", 1), ("b", 2), ("c", 3)] {
            add(&mut entries, uid, "vm", made);
        }
        turns.listed(&mut entries);
        assert_eq!(waiting(&entries), ["b", "c"]);
        let object = |entries: &mut HashMap<Uid, Entry>, uid: &str| {
            entries.get_mut(uid).unwrap().object.take().unwrap()
        };
        let mut a = object(&mut entries, "a");
        a.going = true;
        entries.get_mut("a").unwrap().object = Some(a);
        assert_eq!(waiting(&entries), ["c"]);
        let mut b = object(&mut entries, "b");
        b.status.state = Some(crds::TaskState::Error);
        entries.get_mut("b").unwrap().object = Some(b);
        assert_eq!(waiting(&entries), Vec::<Uid>::new());
    }
}
