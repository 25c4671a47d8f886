//! The learned map: owners by id, prefix, suffix, name and pod; what is forgotten and when.
//!
//! Invariant: as of [`super`]; time is paused.
//! Failure: as of [`super`].

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::owners::{GRACE, POD_GRACE};
use super::*;

const ONE: Owner = Owner::One(VM);
const PRIMARY: Owner = Owner::One(BackendIndex::PRIMARY);

#[test]
fn an_id_is_found_whole_by_prefix_or_by_its_end() {
    let (_dir, memory) = fresh();
    memory.learn(Kind::Sandbox, "abc123", BackendIndex::PRIMARY);
    memory.learn(Kind::Sandbox, "abd456", VM);
    assert_eq!(memory.owner(Kind::Sandbox, "abc123"), PRIMARY);
    assert_eq!(memory.owner(Kind::Sandbox, "abd"), ONE);
    assert_eq!(memory.owner(Kind::Sandbox, "ab"), Owner::Ambiguous);
    assert_eq!(memory.owner(Kind::Sandbox, ""), Owner::Unknown);
    assert_eq!(memory.owner(Kind::Sandbox, "abc1234"), Owner::Unknown);
    assert_eq!(memory.owner(Kind::Container, "abc123"), Owner::Unknown);
    let tagged = format!("{}{TAG}", "0".repeat(56));
    assert_eq!(memory.owner(Kind::Container, &tagged), ONE);
    assert_eq!(
        memory.owner(Kind::Container, TAG),
        Owner::Unknown,
        "too short to be whole"
    );
    assert_eq!(
        memory.owner(Kind::Image, &tagged),
        Owner::Unknown,
        "images have no tag"
    );
}

#[test]
fn what_was_learned_goes_before_what_an_id_looks_like() {
    let (_dir, memory) = fresh();
    let tagged = format!("{}{TAG}", "0".repeat(56));
    memory.learn(Kind::Container, &tagged, BackendIndex::PRIMARY);
    assert_eq!(memory.owner(Kind::Container, &tagged), PRIMARY);
    memory.forget(Kind::Container, &tagged);
    assert_eq!(memory.owner(Kind::Container, &tagged), ONE);
}

#[test]
fn an_image_that_both_have_is_ambiguous_and_names_are_not_prefixes() {
    let (_dir, memory) = fresh();
    memory.store_list(
        BackendIndex::PRIMARY,
        Kind::Image,
        &images(&[("sha256:aa11", "busybox:1")]),
    );
    let vms = images(&[
        ("sha256:aa11", "vmlet.dev/busybox:1"),
        ("sha256:bb22", "vmlet.dev/os:1"),
    ]);
    memory.store_list(VM, Kind::Image, &vms);
    assert_eq!(memory.owner(Kind::Image, "sha256:aa11"), Owner::Ambiguous);
    assert_eq!(memory.owner(Kind::Image, "bb2"), ONE);
    assert_eq!(memory.owner(Kind::Image, "busybox:1"), PRIMARY);
    assert_eq!(memory.owner(Kind::Image, "vmlet.dev/os:1"), ONE);
    assert_eq!(memory.owner(Kind::Image, "vmlet.dev/os"), Owner::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_list_forgets_what_it_leaves_out_except_the_newly_made() {
    let (_dir, memory) = fresh();
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&["old", "stays"]));
    tokio::time::advance(GRACE).await;
    memory.learn(Kind::Sandbox, "new", VM);
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&["stays"]));
    assert_eq!(memory.owner(Kind::Sandbox, "old"), Owner::Unknown);
    assert_eq!(memory.owner(Kind::Sandbox, "stays"), ONE);
    assert_eq!(memory.owner(Kind::Sandbox, "new"), ONE);
    tokio::time::advance(GRACE).await;
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&["stays"]));
    assert_eq!(
        memory.owner(Kind::Sandbox, "new"),
        Owner::Unknown,
        "the same list again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_known_as_long_as_it_has_a_sandbox() {
    let (_dir, memory) = fresh();
    memory.learn_uid("uid-s1", VM);
    memory.learn_uid("uid-never", VM);
    assert_eq!(memory.owner_of_uid("uid-s1"), Some(VM));
    for _ in 0..3 {
        memory.store_list(VM, Kind::Sandbox, &sandboxes(&["s1"]));
        tokio::time::advance(POD_GRACE).await;
    }
    memory.learn_uid("uid-other", BackendIndex::PRIMARY);
    memory.learn_uid("uid-other", VM);
    assert_eq!(memory.owner_of_uid("uid-s1"), Some(VM));
    assert_eq!(memory.owner_of_uid("uid-never"), None);
    assert_eq!(memory.owner_of_uid("uid-other"), Some(VM));
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&[]));
    assert_eq!(memory.owner_of_uid("uid-s1"), None);
}

#[test]
fn a_flood_of_answers_without_lists_is_bounded() {
    let (_dir, memory) = fresh();
    memory.store_list(
        VM,
        Kind::Container,
        &containers(&[("real", Default::default())]),
    );
    for number in 0..10_001 {
        memory.learn(Kind::Container, &format!("flood-{number}"), VM);
    }
    assert_eq!(memory.owner(Kind::Container, "flood-2000"), Owner::Unknown);
    assert_eq!(memory.owner(Kind::Container, "flood-10000"), ONE);
    assert_eq!(memory.owner(Kind::Container, "real"), ONE);
    memory.learn(Kind::Container, &"x".repeat(1025), VM);
    assert_eq!(
        memory.owner(Kind::Container, &"x".repeat(1025)),
        Owner::Unknown
    );
}

fn id() -> impl Strategy<Value = String> {
    "[ab]{1,5}"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn owners_agree_with_two_plain_sets(
        steps in prop::collection::vec((0..4_u8, 0..2_usize, id()), 0..40),
        requested in prop::collection::vec(id(), 1..20),
    ) {
        let (_dir, memory) = fresh();
        let mut sets = [BTreeSet::new(), BTreeSet::new()];
        for (step, backend, id) in steps {
            match step {
                0 => {
                    memory.forget(Kind::Container, &id);
                    sets.iter_mut().for_each(|set| { set.remove(&id); });
                }
                1 => {
                    let list = containers(&[(id.as_str(), Default::default())]);
                    memory.store_list(BackendIndex(backend), Kind::Container, &list);
                    sets[backend].insert(id);
                }
                _ => {
                    memory.learn(Kind::Container, &id, BackendIndex(backend));
                    sets[backend].insert(id);
                }
            }
        }
        for requested in requested {
            let with = |has: &dyn Fn(&String) -> bool| -> Vec<usize> {
                (0..2).filter(|backend| sets[*backend].iter().any(has)).collect()
            };
            let mut owners = with(&|id| *id == requested);
            if owners.is_empty() {
                owners = with(&|id| id.starts_with(&requested));
            }
            let expected = match *owners {
                [] => Owner::Unknown,
                [one] => Owner::One(BackendIndex(one)),
                _ => Owner::Ambiguous,
            };
            prop_assert_eq!(memory.owner(Kind::Container, &requested), expected, "{}", requested);
        }
    }
}
