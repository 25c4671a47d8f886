//! The planner: a table of decisions, and that every update keeps its promises and ends.
//!
//! Invariant: machines of the simulation become available, or go, only between two plans.
//! Failure: the demand and the machines that broke a promise.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// Machines by letter: `a` available, `r` ready, `n` not ready, each of the present template, in capitals
/// of an earlier one; `o` is off, `m` is available and was adopted; `d` is being deleted, `x` is not of the set, `-` is
/// missing.
fn slots(letters: &str) -> Slots {
    let slot = |letter: char| {
        let small = letter.to_ascii_lowercase();
        let replica = Replica {
            is_deleting: small == 'd',
            has_revision: small != 'm',
            is_updated: letter.is_ascii_lowercase() && small != 'm',
            is_ready: matches!(small, 'a' | 'r' | 'm'),
            is_available: matches!(small, 'a' | 'm'),
            is_off: small == 'o',
        };
        match small {
            '-' => None,
            'x' => Some(Slot::Taken),
            _ => Some(Slot::Replica(replica)),
        }
    };
    let all = (0..).zip(letters.chars().map(slot));
    all.filter_map(|(index, slot)| Some((index, slot?)))
        .collect()
}

const fn rolling(replicas: u32, surge: u32, unavailable: u32) -> Demand {
    Demand {
        replicas,
        surge,
        unavailable,
        replace_from: Some(0),
    }
}

const fn on_delete(replicas: u32) -> Demand {
    Demand {
        replicas,
        surge: 0,
        unavailable: 1,
        replace_from: None,
    }
}

#[rstest]
#[case::new_set(on_delete(3), "", &[0, 1, 2], &[])]
#[case::scaled_up(on_delete(3), "a", &[1, 2], &[])]
#[case::as_it_is_to_be(on_delete(3), "aaa", &[], &[])]
#[case::a_gap(on_delete(3), "a-a", &[1], &[])]
#[case::a_name_that_is_taken(on_delete(3), "ax", &[2], &[])]
#[case::one_that_goes_keeps_its_name(on_delete(2), "ad", &[], &[])]
#[case::scaled_down_highest_first(on_delete(1), "aana", &[], &[3, 2, 1])]
#[case::scaled_to_nothing(on_delete(0), "an", &[], &[1, 0])]
#[case::scaled_down_although_others_fail(on_delete(1), "naa", &[], &[2, 1])]
#[case::what_goes_already(on_delete(1), "add", &[], &[])]
#[case::what_is_not_of_the_set_stays(on_delete(1), "axx", &[], &[])]
#[case::on_delete_replaces_nothing(on_delete(3), "AAA", &[], &[])]
#[case::on_delete_with_one_that_was_deleted(on_delete(3), "A-A", &[1], &[])]
#[case::one_at_a_time_from_the_end(rolling(3, 0, 1), "AAA", &[], &[2])]
#[case::waits_for_the_new_one(rolling(3, 0, 1), "AAn", &[], &[])]
#[case::waits_until_it_was_ready_for_long_enough(rolling(3, 0, 1), "AAr", &[], &[])]
#[case::waits_for_the_end_of_the_old_one(rolling(3, 0, 1), "AAd", &[], &[])]
#[case::waits_for_the_missing_one(rolling(3, 0, 1), "AA-", &[2], &[])]
#[case::goes_on(rolling(3, 0, 1), "AAa", &[], &[1])]
#[case::two_at_a_time(rolling(4, 0, 2), "AAAA", &[], &[3, 2])]
#[case::one_that_fails_anyway_first(rolling(3, 0, 1), "NAA", &[], &[0])]
#[case::not_all_that_fail_at_once(rolling(4, 0, 1), "NNNN", &[], &[3])]
#[case::a_broken_template_stops(rolling(4, 0, 1), "NNNn", &[], &[])]
#[case::surge_before_the_first_one(rolling(3, 1, 0), "AAA", &[3], &[])]
#[case::surge_is_not_available_yet(rolling(3, 1, 0), "AAAn", &[], &[])]
#[case::surge_is_available(rolling(3, 1, 0), "AAAa", &[], &[2])]
#[case::surge_stays_for_the_last_one(rolling(3, 1, 0), "naaa", &[], &[])]
#[case::surge_goes_at_the_end(rolling(3, 1, 0), "aaaa", &[], &[3])]
#[case::surge_that_never_came_up_goes(rolling(3, 1, 0), "aaan", &[], &[3])]
#[case::no_more_surge_than_outdated(rolling(3, 3, 0), "aaA", &[3], &[])]
#[case::surge_of_an_earlier_template(rolling(2, 1, 0), "AAA", &[], &[2])]
#[case::beyond_the_surge_at_once(rolling(1, 1, 0), "naaa", &[], &[3, 2])]
#[case::one_that_the_set_did_not_make_stays(rolling(3, 0, 1), "Amm", &[], &[0])]
#[case::none_that_the_set_made(rolling(2, 1, 0), "mm", &[], &[])]
#[case::one_that_the_set_did_not_make_is_scaled_away(rolling(1, 0, 1), "mm", &[], &[1])]
#[case::one_that_is_off_is_replaced(rolling(3, 0, 1), "AOA", &[], &[1])]
#[case::one_that_is_off_holds_nothing_up(rolling(3, 0, 1), "AoA", &[], &[2])]
#[case::nor_does_it_count_as_available(rolling(3, 0, 1), "AoN", &[], &[2])]
#[case::one_at_a_time_beside_it(rolling(3, 0, 1), "Aon", &[], &[])]
#[case::all_that_are_off(rolling(3, 0, 1), "OOo", &[], &[1])]
#[case::a_taken_name_counts_as_absent(rolling(3, 0, 1), "AAx", &[], &[])]
fn decisions(
    #[case] demand: Demand,
    #[case] letters: &str,
    #[case] creates: &[u32],
    #[case] deletes: &[u32],
) {
    let plan = plan(&demand, &slots(letters));
    assert_eq!(plan.creates, creates);
    let deleted: Vec<_> = plan.deletes.iter().map(|(index, _)| *index).collect();
    assert_eq!(deleted, deletes);
}

#[test]
fn machines_below_the_partition_stay() {
    let demand = Demand {
        replace_from: Some(2),
        ..rolling(4, 0, 4)
    };
    let plan = plan(&demand, &slots("AAAA"));
    assert_eq!(plan.deletes, [(3, Cause::Outdated), (2, Cause::Outdated)]);
}

#[test]
fn a_pass_deletes_a_bounded_number_of_machines() {
    let plan = plan(&on_delete(1000), &Slots::new());
    assert_eq!((plan.creates.len(), plan.is_cut), (1000, false));
    let many = "a".repeat(100);
    let plan = super::plan(&on_delete(0), &slots(&many));
    assert_eq!((plan.deletes.len(), plan.is_cut), (BURST, true));
    assert_eq!(plan.deletes[0], (99, Cause::ScaledDown));
}

/// What happens to a machine between two plans.
fn later(slot: Slot, luck: u8) -> Option<Slot> {
    let Slot::Replica(mut replica) = slot else {
        return Some(slot);
    };
    match (replica.is_deleting, luck % 3) {
        (true, 0) => return None,
        (false, 0) if replica.is_ready => replica.is_available = true,
        (false, 1) => replica.is_ready = true,
        _ => {}
    }
    Some(Slot::Replica(replica))
}

fn available(slots: &Slots) -> usize {
    let is_it =
        |slot: &&Slot| matches!(slot, Slot::Replica(one) if one.is_available && !one.is_deleting);
    slots.values().filter(is_it).count()
}

fn existing(slots: &Slots) -> usize {
    let is_it = |slot: &&Slot| matches!(slot, Slot::Replica(one) if !one.is_deleting);
    slots.values().filter(is_it).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn an_update_keeps_its_promises_and_ends(
        letters in "[arnARNd-]{0,12}",
        replicas in 0_u32..8,
        surge in 0_u32..4,
        unavailable in 0_u32..4,
        luck in prop::collection::vec(any::<u8>(), 64),
    ) {
        let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable };
        let demand = rolling(replicas, surge, unavailable);
        let mut slots = slots(&letters);
        let most = existing(&slots).max(usize::try_from(replicas + surge).unwrap());
        let least = usize::try_from(replicas.saturating_sub(unavailable)).unwrap();
        let mut luck = luck.into_iter().cycle();
        for round in 0..300 {
            let plan = plan(&demand, &slots);
            for (index, cause) in &plan.deletes {
                let Some(Slot::Replica(replica)) = slots.get_mut(index) else {
                    panic!("{index} is no machine: {slots:?}");
                };
                prop_assert!(!replica.is_deleting);
                let was_available = replica.is_available;
                replica.is_deleting = true;
                if was_available && *cause != Cause::ScaledDown {
                    prop_assert!(available(&slots) >= least, "{demand:?} {plan:?} {slots:?}");
                }
            }
            for index in &plan.creates {
                let new = Replica { has_revision: true, is_updated: true, ..Replica::default() };
                let old = slots.insert(*index, Slot::Replica(new));
                prop_assert_eq!(old, None);
            }
            prop_assert!(existing(&slots) <= most, "{demand:?} {slots:?}");
            let next = slots.iter().filter_map(|(index, slot)| {
                let luck = luck.next().unwrap_or_default() % 3 + u8::try_from(round % 3).unwrap();
                Some((*index, later(*slot, luck)?))
            });
            slots = next.collect();
        }
        let count = usize::try_from(replicas).unwrap();
        let is_done = |slot: &Slot| matches!(slot, Slot::Replica(one) if one.is_updated && one.is_available);
        prop_assert!(slots.len() == count && slots.values().all(is_done), "{demand:?} {slots:?}");
    }
}
