//! What PyYAML makes of scalars and documents.
//!
//! Invariant: each expected value is what PyYAML's safe loader prints; `stacks::debian::texts` compares more
//! of them with cloud-init itself.
//! Failure: the text.

use rstest::rstest;
use serde_json::json;

use super::*;

#[rstest]
#[case::bools("[yes, No, ON, off, True, FALSE]", json!([true, false, true, false, true, false]))]
#[case::no_bools("[y, n, Y, yEs, tRue]", json!(["y", "n", "Y", "yEs", "tRue"]))]
#[case::nulls("[~, null, Null, NULL, nUll, '']", json!([null, null, null, null, "nUll", ""]))]
#[case::integers("[0, -0, +5, 1_000, 1__0, -12]", json!([0, 0, 5, 1000, 10, -12]))]
#[case::octal("[010, 0_1, 0777_7, 00, 0_]", json!([8, 1, 4095, 0, 0]))]
#[case::other_bases("[0x1F, -0x1F, 0x_f, 0b11, 0b_1]", json!([31, -31, 15, 3, 1]))]
#[case::no_integers("[08, 0o10, 0X1F, 0B1, _1, 0x, 1-2]", json!(["08", "0o10", "0X1F", "0B1", "_1", "0x", "1-2"]))]
#[case::sexagesimal("[1:30, 190:20:30, -1:30, 1_0:5]", json!([90, 685_230, -90, 605]))]
#[case::no_sexagesimal("[1:60, 0:30, 1:130, '1:30']", json!(["1:60", "0:30", "1:130", "1:30"]))]
#[case::floats("[1., .5, 1_000.5, -1.5, 1.5e+3, 1.E-1, 08.5]", json!([1.0, 0.5, 1000.5, -1.5, 1500.0, 0.1, 8.5]))]
#[case::sexagesimal_floats("[12:30:45.5, 0:30.5, 1:30.]", json!([45045.5, 30.5, 90.0]))]
#[case::no_floats("[1e3, 1.5e3, +.5, -.5, ., ._, 1.5e+, 1:30.5e+1]", json!(["1e3", "1.5e3", "+.5", "-.5", ".", "._", "1.5e+", "1:30.5e+1"]))]
#[case::no_dates("[2001-1-1, 01-01-2001, '2001-01-01', 2001-01-01T1:1:1, 2001-01-01 1]", json!(["2001-1-1", "01-01-2001", "2001-01-01", "2001-01-01T1:1:1", "2001-01-01 1"]))]
#[case::large("[9223372036854775807, 18446744073709551615, -9223372036854775808]", json!([i64::MAX, u64::MAX, i64::MIN]))]
#[case::tags("[!!str 010, !!int '7', !!float 1, !!float 1e3, !!bool 'yEs', !!null x, ! '12', ! yes]", json!(["010", 7, 1.0, 1000.0, true, null, 12, true]))]
#[case::empty_with_tags("{a: !!str , b: !!null , c: ! }", json!({"a": "", "b": null, "c": null}))]
#[case::collections_with_tags("!!map {a: !!seq [1], b: ! [], c: !<tag:yaml.org,2002:str> 1}", json!({"a": [1], "b": [], "c": "1"}))]
#[case::binary("!!binary aGVs bG8=", json!("hello"))]
#[case::equal_keys("{a: 1, a: 2, m: {x: 1, x: 2}}", json!({"a": 2, "m": {"x": 2}}))]
#[case::a_key_that_is_a_sign("{=: 1, '<<': 2}", json!({"=": 1, "<<": 2}))]
#[case::aliases("{a: &a [1, &b x], c: *a, *b : 2}", json!({"a": [1, "x"], "c": [1, "x"], "x": 2}))]
#[case::merge("{b: &b {x: 1, y: 2}, m: {y: 3, <<: *b}}", json!({"b": {"x": 1, "y": 2}, "m": {"x": 1, "y": 3}}))]
#[case::merge_of_several("{<<: [{x: 1}, {x: 2, z: 3}]}", json!({"x": 1, "z": 3}))]
#[case::merge_twice("{<<: {x: 1}, <<: {x: 2}}", json!({"x": 2}))]
#[case::merge_by_its_tag("{!!merge any: {x: 1}}", json!({"x": 1}))]
#[case::a_block_with_its_end("a: |\n  x\n", json!({"a": "x\n"}))]
#[case::a_block_without_its_end("a: |\n  x\n  y", json!({"a": "x\ny"}))]
#[case::a_folded_block_without_its_end("a: >+\n  x\n  y", json!({"a": "x y"}))]
#[case::a_block_before_the_end("a: |\n  x\nb: y", json!({"a": "x\n", "b": "y"}))]
#[case::a_block_before_a_comment("a: |\n  x\n# y", json!({"a": "x\n"}))]
#[case::a_mark_of_keys_outside_of_brackets("?a: ?b", json!({"?a": "?b"}))]
#[case::nothing("# nothing\n", json!(null))]
#[case::an_empty_document("--- \n...\n", json!(null))]
#[case::a_mark_of_the_order_of_bytes("\u{feff}a: 1", json!({"a": 1}))]
fn a_text_means_what_pyyaml_reads(#[case] text: &str, #[case] expected: Value) {
    assert_eq!(value(text).unwrap(), expected);
}

#[rstest]
#[case::a_date(
    "a: 2001-01-01",
    "line 1, column 4: without quotes this is a date, and cannot be merged"
)]
#[case::a_date_with_time("[2001-1-1 1:01:01.5 +1:30]", "a date")]
#[case::a_date_with_zone("[2001-12-14t21:59:43Z]", "a date")]
#[case::a_date_by_tag("!!timestamp '2001-01-01'", "a date")]
#[case::infinite("[.inf]", "not finite")]
#[case::infinite_with_a_sign("[+.inf]", "not finite")]
#[case::no_number("[.NaN]", "not finite")]
#[case::too_large("[1.0e+999]", "not finite")]
#[case::an_integer_that_is_too_large("[18446744073709551616]", "too large")]
#[case::a_set("a: !!set {x, y}", "none of JSON")]
#[case::a_map_with_order("a: !!omap [x: 1]", "none of JSON")]
#[case::pairs("a: !!pairs [x: 1]", "none of JSON")]
#[case::bytes("!!binary H4sIAAAA//8=", "!!binary is no text, and cannot be merged")]
#[case::a_key_that_is_a_number(
    "a: 1\n2: x",
    "line 2, column 1: without quotes this key is no text"
)]
#[case::a_key_that_is_true("{on: x}", "this key is no text")]
#[case::a_key_that_is_null("{~: x}", "this key is no text")]
#[case::a_key_that_is_a_list("? [x]\n: 1", "this key is no text")]
#[case::a_key_that_is_bytes("{!!binary aGk= : 1}", "this key is no text")]
#[case::a_mark_of_keys("users: [?default, x]", "without quotes this begins a key")]
#[case::an_end_of_a_line("a: \"x\u{2028}y\"", "line 1, column 6: this character")]
fn what_json_cannot_have_is_not_merged(#[case] text: &str, #[case] words: &str) {
    let refused = value(text).unwrap_err();
    assert!(
        refused.contains(words) && refused.contains("passed on as it is"),
        "{refused}"
    );
}

#[rstest]
#[case::equals("[=]")]
#[case::merge_in_a_list("[<<]")]
#[case::merge_of_a_number("{<<: 1}")]
#[case::merge_of_numbers("{<<: [{a: 1}, 2]}")]
#[case::no_digits("[0b_]")]
#[case::no_octal("!!int 08")]
#[case::no_truth("!!bool x")]
#[case::no_base64("!!binary aGk")]
#[case::an_odd_anchor("&1:30 a")]
#[case::an_anchor_twice("[&a 1, *a, &a 2, *a]")]
#[case::an_unknown_tag("!mine x")]
#[case::a_list_with_a_tag_of_texts("!!str [x]")]
#[case::a_text_with_a_tag_of_lists("!!seq x")]
#[case::two_documents("a: 1\n---\nb: 2")]
fn what_pyyaml_refuses_is_not_merged(#[case] text: &str) {
    let refused = value(text).unwrap_err();
    assert!(
        refused.ends_with("cloud-init does not read this"),
        "{refused}"
    );
}

#[test]
fn the_work_of_aliases_is_bounded() {
    let refused = |text: &str| value(text).unwrap_err();
    let wide = |count: usize| format!("[&a [{}], *a]", "1,".repeat(count));
    assert!(value(&wide(MAX_REPLAYED - 2)).is_ok());
    assert!(refused(&wide(MAX_REPLAYED)).contains("too large"));
    let long = format!("[&a {}, {}]", "x".repeat(1 << 20), "*a, ".repeat(17));
    assert!(refused(&long).contains("too large"));
    assert!(refused("&a [*a]").contains("nested too deeply"));
    assert!(refused("&a {<<: *a}").contains("nested too deeply"));
}

#[test]
fn depth_and_size_are_bounded() {
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(value(&deep(64)).is_ok());
    assert!(value(&deep(66)).unwrap_err().contains("nested too deeply"));
    let large = format!("[{}]", "1,".repeat(250_000));
    assert!(value(&large).unwrap_err().contains("too large"));
}

/// Each of them is refused where it must be merged.
#[rstest]
#[case::dates("a: [2001-01-01, !!timestamp '2001-01-01']")]
#[case::keys("1: a\nyes: b\n? [x]\n: c")]
#[case::tags("{a: !!set {x}, b: !!int 1:30, c: !mine x, d: !!binary H4sIAAAA//8=}")]
#[case::signs("{a: [=, <<], <<: 1}")]
#[case::anchors("[&a 1, &a 2, &1:30 x]")]
#[case::a_mark_of_keys("[?default]")]
#[case::ends_of_lines("a: \"x\u{85}\u{2028}y\"")]
fn what_is_passed_on_may_have_any_value(#[case] text: &str) {
    let map = format!("m:\n  {}", text.replace('\n', "\n  "));
    assert_eq!(check_map(&map), Ok(true));
    value(&map).unwrap_err();
}

#[rstest]
#[case::nothing("# nothing", Ok(false))]
#[case::null("~", Ok(false))]
#[case::no_keys("--- {}\n", Ok(false))]
#[case::a_list("- a", Err("a YAML map is needed"))]
#[case::words("just words", Err("a YAML map is needed"))]
#[case::two_documents(
    "a: 1\n---\nb: 2",
    Err("line 2, column 1: cloud-init does not read this")
)]
#[case::no_yaml("a: [1", Err("this is no YAML"))]
#[case::an_alias_in_its_anchor("a: &a [*a]", Err("too large"))]
fn what_is_passed_on_has_to_be_a_map(#[case] text: &str, #[case] expected: Result<bool, &str>) {
    match (check_map(text), expected) {
        (Err(refused), Err(words)) => assert!(refused.contains(words), "{refused}"),
        (found, expected) => assert_eq!(found.ok(), expected.ok()),
    }
}
