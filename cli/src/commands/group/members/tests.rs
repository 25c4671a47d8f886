use super::*;

fn members(words: &[&str]) -> Vec<GroupMember> {
    let words: Vec<_> = words.iter().map(ToString::to_string).collect();
    parsed(&words)
}

fn tiers(all: &[&[&str]]) -> Vec<BootTier> {
    let tier = |words: &&[&str]| BootTier {
        members: members(words),
        ..BootTier::default()
    };
    all.iter().map(tier).collect()
}

#[test]
fn a_member_is_a_machine_unless_it_is_called_a_group() {
    let kinds = members(&[
        "web",
        "vm/db",
        "vmg/shop",
        "virtualmachinegroup.vmlet.dev/x",
    ]);
    let kinds: Vec<_> = kinds
        .iter()
        .map(|one| (one.kind, one.name.as_str()))
        .collect();
    let vm = GroupMemberKind::VirtualMachine;
    let vmg = GroupMemberKind::VirtualMachineGroup;
    assert_eq!(kinds, [(vm, "web"), (vm, "db"), (vmg, "shop"), (vmg, "x")]);
}

#[test]
fn a_new_member_gets_the_last_tier_or_the_one_that_is_named() {
    let add =
        |before: &[&[&str]], words: &[&str], tier| added(&tiers(before), &members(words), tier);
    assert_eq!(add(&[], &["a"], None).unwrap(), tiers(&[&["a"]]));
    assert_eq!(
        add(&[&["a"], &["b"]], &["c", "d"], None).unwrap(),
        tiers(&[&["a"], &["b", "c", "d"]])
    );
    assert_eq!(
        add(&[&["a"]], &["b"], Some(2)).unwrap(),
        tiers(&[&["a"], &["b"]])
    );
    // It stays where it is, so that the command can be repeated.
    assert_eq!(
        add(&[&["a"], &["b"]], &["a"], Some(2)).unwrap(),
        tiers(&[&["a"], &["b"]])
    );
    // A machine and a group may have one name.
    assert_eq!(
        add(&[&["a"]], &["vmg/a"], None).unwrap(),
        tiers(&[&["a", "vmg/a"]])
    );
    for tier in [0, 3] {
        assert!(add(&[&["a"]], &["b"], Some(tier)).is_err(), "{tier}");
    }
    let names: Vec<_> = (0..=MEMBERS).map(|n| n.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let full = add(&[], &names, None).unwrap_err().to_string();
    assert!(full.contains("another --tier"), "{full}");
}

#[test]
fn a_removed_member_leaves_its_tier_behind() {
    let rest = removed(
        &tiers(&[&["a"], &["b", "vmg/b"]]),
        &members(&["a", "vmg/b"]),
    );
    assert_eq!(rest, tiers(&[&[], &["b"]]));
}

#[test]
fn a_member_of_another_group_is_not_free() {
    let link = |name: Option<&str>| Link(name.map(str::to_owned));
    assert!(link(None).is_free_for("shop") && link(Some("shop")).is_free_for("shop"));
    assert!(!link(Some("other")).is_free_for("shop"));
    assert!(link(Some("shop")).is_of("shop") && !link(None).is_of("shop"));
}
