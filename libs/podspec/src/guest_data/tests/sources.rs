//! Guest data from sources: how they are read, and what the pod adds to them.
//!
//! Invariant: what is compared are the files that the guest gets.
//! Failure: the assertion shows the files.

use super::*;

#[test]
fn a_source_is_the_base_and_the_pods_own_map_is_merged_over_it() {
    let held = source(
        SourceKind::ConfigMap,
        "base",
        &[
            ("runcmd", "[a]"),
            ("users", "{x: {uid: 1, gid: 1}}"),
            ("locale", "C"),
        ],
    );
    let own = "runcmd: [b]\nusers: {x: {uid: 2}}\nlocale: [de]\nmode: 0644\n";
    let mut pairs = vec![
        ("cloud-init-user-data-source", "ConfigMap/base"),
        ("cloud-init-user-data", own),
    ];
    let wanted = json!({
        "runcmd": ["a", "b"], "users": {"x": {"uid": 2, "gid": 1}}, "locale": ["de"], "mode": 420,
    });
    assert_eq!(user_data(&pairs, &held), wanted);
    pairs.push(("VirtletCloudInitUserDataOverwrite", "true"));
    assert!(parse(&pairs).unwrap().unwrap().sources().is_empty());
    assert_eq!(user_data(&pairs, &BTreeMap::new())["runcmd"], json!(["b"]));
}

#[rstest]
#[case::own_annotation(&[("cloud-init-user-data-source", "secret/seed"), ("cloud-init-user-data-source-key", "user-data")])]
#[case::in_the_source(&[("cloud-init-user-data-source", "secret/seed/user-data")])]
fn one_key_of_a_source_is_passed_on_as_it_is(#[case] pairs: &[(&str, &str)]) {
    let held = source(
        SourceKind::Secret,
        "seed",
        &[("user-data", "#!/bin/sh\n: é\n")],
    );
    assert_eq!(files(pairs, &held).1, "#!/bin/sh\n: é\n");
}

#[test]
fn an_encoded_key_is_decoded() {
    let held = source(SourceKind::Secret, "seed", &[("k", "IyEv\nYmlu\n")]);
    let pairs = [
        ("VirtletCloudInitUserDataSource", "secret/seed"),
        ("VirtletCloudInitUserDataSourceKey", "k"),
        ("VirtletCloudInitUserDataSourceEncoding", "base64"),
    ];
    assert_eq!(files(&pairs, &held).1, "#!/bin");
}

#[test]
fn keys_of_a_source_come_before_those_of_the_pod() {
    let held = source(
        SourceKind::Secret,
        "keys",
        &[("authorized_keys", "one\ntwo\n")],
    );
    let pairs = [
        ("VirtletSSHKeySource", "secret/keys"),
        ("VirtletSSHKeys", "three"),
    ];
    let keys = json!(["one", "two", "three"]);
    assert_eq!(files(&pairs, &held).0["public-keys"], keys);
}

#[rstest]
#[case(&[("cloud-init-user-data-source", "secret/seed")], &[("k", "a: hunter2: {")], "key k of secret seed")]
#[case(&[("cloud-init-user-data-source", "secret/seed/x")], &[("k", "hunter2")], "secret seed has no key x")]
#[case(&[("ssh-keys-source", "secret/seed")], &[("k", "hunter2")], "no key authorized_keys")]
#[case(&[("cloud-init-user-data-source", "secret/seed/k")], &[("k", "#cloud-config\n- hunter2\n")], "YAML map")]
#[case(&[("cloud-init-user-data-source", "secret/seed/k")], &[("k", "#cloud-config\na: 1\n hunter2: 2\n")], "line 3, column 9")]
#[case(&[("files-from-data-source", "secret/seed")], &[("k", "hunter2")], "no key k_path")]
#[case(&[("files-from-data-source", "secret/seed")], &[("k", "hunter2"), ("k_path", "/etc/../x")], "key k_path of secret seed")]
#[case(&[("files-from-data-source", "secret/seed")], &[("k", "hunter2!"), ("k_path", "/x")], "no base64")]
#[case(&[("files-from-data-source", "secret/seed")], &[("k", "hunter2"), ("k_path", "/x"), ("k_encoding", "gzip")], "key k_encoding")]
fn a_source_that_is_unfit_is_named_and_not_repeated(
    #[case] pairs: &[(&str, &str)],
    #[case] held: &[(&str, &str)],
    #[case] words: &str,
) {
    let data = parse(pairs).unwrap().unwrap();
    let held = source(SourceKind::Secret, "seed", held);
    let error = data.assemble(&GUEST, &held).unwrap_err().to_string();
    assert!(
        error.contains(words) && !error.contains("hunter2"),
        "{error}"
    );
    let shown = format!("{data:?} {held:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn an_unread_source_differs_from_an_empty_one() {
    let data = parse(&[("ssh-keys-source", "secret/keys")])
        .unwrap()
        .unwrap();
    let error = data.assemble(&GUEST, &BTreeMap::new()).unwrap_err();
    assert!(matches!(error, GuestDataError::Unread(_)), "{error}");
}

#[test]
fn the_network_configuration_of_a_source_replaces_the_generated_one() {
    let text = "# by hand\nversion: 2\nethernets: {}\n";
    let held = source(
        SourceKind::Secret,
        "net",
        &[("network-config", text), ("other", "a: [")],
    );
    let named = |value: &'static str| [("cloud-init-network-config-source", value)];
    let made = |pairs: &[(&str, &str)]| {
        let data = parse(pairs).unwrap().unwrap();
        assert!(data.is_requested() && !data.has_addresses() && data.has_searches());
        assert_eq!(data.sources(), held.keys().cloned().collect());
        data.assemble(&GUEST, &held)
    };
    for value in ["secret/net", "secret/net/network-config"] {
        let network = made(&named(value)).unwrap().network;
        assert_eq!(network, NetworkData::Given(text.as_bytes().to_vec()));
    }
    let refused = made(&named("secret/net/other")).unwrap_err().to_string();
    assert!(
        refused.contains("key other of secret net: line 1, column"),
        "{refused}"
    );
    let refused = made(&named("secret/net/none")).unwrap_err();
    assert!(matches!(refused, GuestDataError::NoKey { .. }), "{refused}");
    let drive = [
        ("cloud-init-image-type", "configdrive"),
        named("secret/net")[0],
    ];
    let refused = made(&drive).unwrap_err().to_string();
    assert!(refused.contains("OpenStack"), "{refused}");
}

#[test]
fn a_network_configuration_has_one_origin_and_needs_a_disk() {
    let source = ("cloud-init-network-config-source", "secret/a");
    for (other, words) in [
        (
            ("cloud-init-network-config", "version: 2"),
            "use one of them",
        ),
        (("cloud-init", "off"), "need a cloud-init disk"),
    ] {
        let refused = parse(&[source, other]).unwrap_err();
        assert!(refused.reason.contains(words), "{refused}");
    }
}

#[test]
fn a_source_may_have_the_longest_name_and_key() {
    let name = "n".repeat(253);
    let key = "k".repeat(253);
    let value = format!("secret/{name}/{key}");
    let data = parse(&[("cloud-init-network-config-source", &value)]);
    assert_eq!(data.unwrap().unwrap().sources().len(), 1);
}
