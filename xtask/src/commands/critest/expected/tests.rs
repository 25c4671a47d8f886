use std::time::Duration;

use super::*;

const TABLE: &str = "# remark\na\tpass\nb\tpass\nc\tfail\twhy\nd\tskip\twhy\ne\tfail\twhy\n";

fn found(spec: &str, outcome: Outcome) -> Spec {
    Spec {
        group: spec.to_uppercase(),
        text: spec.to_owned(),
        outcome,
        duration: Duration::ZERO,
        message: "reason".to_owned(),
    }
}

fn names(expected: &Expected) -> Vec<&str> {
    expected.lines().map(|(spec, _)| spec).collect()
}

#[test]
fn regressions_new_passes_and_specifications_that_did_not_run_are_reported() {
    let expected = Expected::parse(TABLE).unwrap();
    let differences = expected.compare(&[
        found("a", Outcome::Pass),
        found("b", Outcome::Fail),
        found("c", Outcome::Pass),
        found("e", Outcome::Fail),
    ]);
    assert_eq!(
        differences,
        [
            "fail, expected pass: b: reason",
            "passes now, expected fail: c",
            "did not run: d"
        ]
    );
}

#[test]
fn table_and_suite_have_the_same_specifications() {
    let expected = Expected::parse("a\tpass\nb\tfail\twhy\n").unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|text| found(text, Outcome::Skip));
    assert!(expected.compare_names(&[b, a.clone()]).is_empty());
    assert_eq!(
        expected.compare_names(&[c, a]),
        ["unknown to this critest: b", "not in the table: c"]
    );
}

#[test]
fn a_bad_table_is_refused_with_the_line() {
    for (text, error) in [
        ("a\tperhaps\n", "line 1: not a text"),
        ("a\tpass\nb\n", "line 2: not a text"),
        ("a\tpass\na\tfail\twhy\n", "line 2: a second time"),
        ("# remark\na\tfail\n", "line 2: fail without a reason"),
        ("a\tskip\t \n", "line 1: skip without a reason"),
        ("a\tpass\tbecause\n", "line 1: a reason, but it passes"),
    ] {
        let found = Expected::parse(text).unwrap_err().to_string();
        assert!(found.starts_with(error), "{found}");
    }
}

#[test]
fn only_what_must_pass_is_chosen_unless_all_is() {
    let expected = Expected::parse(TABLE).unwrap();
    assert_eq!(names(&expected.choose(None, false)), ["a", "b"]);
    assert_eq!(expected.choose(None, true).len(), 5);
    assert_eq!(names(&expected.choose(Some("b"), false)), ["b"]);
    assert_eq!(expected.choose(Some("c"), false).len(), 0);
    assert_eq!(names(&expected.choose(Some("c"), true)), ["c"]);
}

#[test]
fn groups_are_in_the_order_of_the_table() {
    let expected = Expected::parse("z 1\tpass\na 1\tpass\nz 2\tpass\n").unwrap();
    let spec = |group: &str, text| Spec {
        group: group.to_owned(),
        ..found(text, Outcome::Skip)
    };
    let groups = expected.by_group(&[spec("A", "a 1"), spec("Z", "z 2"), spec("Z", "z 1")]);
    let groups: Vec<_> = groups
        .iter()
        .map(|(name, lines)| (name.as_str(), names(lines)))
        .collect();
    assert_eq!(groups, [("Z", vec!["z 1", "z 2"]), ("A", vec!["a 1"])]);
}

#[test]
fn the_table_in_the_repository_is_sound() {
    let path = crate::workspace::root().join("tests/critest/expected.tsv");
    let table = Expected::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(table.len() > 100, "{}", table.len());
}
