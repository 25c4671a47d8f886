//! User data that are passed on, and those that are merged.
//!
//! Invariant: what is compared are the files that the guest gets.
//! Failure: the assertion shows the files.

use super::*;

#[test]
fn a_text_that_need_not_be_merged_is_passed_on_as_it_is() {
    let text = "# mine\nwrite_files:\n- {path: /a, permissions: 0644}\n";
    let (_, passed) = files(&[("cloud-init-user-data", text)], &BTreeMap::new());
    assert_eq!(passed, format!("#cloud-config\n{text}"));
    let headed = "#cloud-config\nruncmd: [date]\n";
    let (_, passed) = files(&[("VirtletCloudInitUserData", headed)], &BTreeMap::new());
    assert_eq!(passed, headed);
}

/// PyYAML, which cloud-init uses, reads all of these.
#[rstest]
#[case::binary("write_files:\n- {path: /x, encoding: gzip, content: !!binary H4sIAAAA//8=}\n")]
#[case::equal_keys("runcmd: [a]\nruncmd: [b]\n")]
#[case::infinity("a: .inf\n")]
#[case::other_keys("1: a\ntrue: b\n")]
#[case::merge_keys("base: &base {a: 1}\nother: {<<: *base, b: 2}\n")]
fn user_data_that_cloud_init_reads_are_passed_on(#[case] text: &str) {
    let (_, passed) = files(&[("cloud-init-user-data", text)], &BTreeMap::new());
    assert_eq!(passed, format!("#cloud-config\n{text}"));
    let whole = format!("#cloud-config\n{text}");
    let (_, passed) = files(&[("cloud-init-user-data-script", &whole)], &BTreeMap::new());
    assert_eq!(passed, whole);
    let sources = source(SourceKind::Secret, "seed", &[("user-data", &whole)]);
    let key = [("cloud-init-user-data-source", "secret/seed/user-data")];
    assert_eq!(files(&key, &sources).1, whole);
}

#[test]
fn a_template_is_passed_on_as_it_is() {
    let text = "## template: jinja\n#cloud-config\nhostname: {{ v1.local_hostname }}\n";
    let (_, passed) = files(&[("cloud-init-user-data", text)], &BTreeMap::new());
    assert_eq!(passed, text);
}

#[test]
fn what_is_merged_means_what_cloud_init_reads() {
    let keys = [
        ("a", "yes"),
        ("b", "0644"),
        ("c", "{x: 1, x: 2}"),
        ("d", "on"),
    ];
    let sources = source(SourceKind::Secret, "seed", &keys);
    let merged = user_data(&[("cloud-init-user-data-source", "secret/seed")], &sources);
    let expected = json!({"a": true, "b": 0o644, "c": {"x": 2}, "d": true});
    assert_eq!(merged, expected);
    let sources = source(
        SourceKind::Secret,
        "seed",
        &[("a", "!!binary H4sIAAAA//8=")],
    );
    let data = parse(&[("cloud-init-user-data-source", "secret/seed")]);
    let refused = data.unwrap().unwrap().assemble(&GUEST, &sources);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("!!binary is no text, and cannot be merged"),
        "{refused}"
    );
}

#[test]
fn characters_that_yaml_does_not_take_as_they_are_are_escaped() {
    let sources = source(
        SourceKind::Secret,
        "seed",
        &[("password", r#""a\x7f\x85\u2028\uFEFFb""#)],
    );
    let settings = [("cloud-init-user-data-source", "secret/seed")];
    let (_, text) = files(&settings, &sources);
    let expected = r#""password": "a\u007f\u0085\u2028\ufeffb""#;
    assert!(text.contains(expected), "{text}");
    let read = yaml::value(&text).unwrap();
    assert_eq!(read["password"], "a\u{7f}\u{85}\u{2028}\u{feff}b");
}

#[test]
fn a_script_stands_for_everything_else_and_needs_no_source() {
    let script = "#!/bin/sh\ndate\n";
    let pairs = [
        ("VirtletCloudInitUserDataScript", script),
        ("cloud-init-user-data", "a: 1"),
        ("cloud-init-user-data-source", "secret/seed"),
    ];
    assert!(parse(&pairs).unwrap().unwrap().sources().is_empty());
    assert_eq!(files(&pairs, &BTreeMap::new()).1, script);
}
