//! Guest data from annotations and sources.
//!
//! Invariant: the merge rules are the predecessor's; what a source holds shows in no message.
//! Failure: a message with the files.

use rstest::rstest;

use serde_json::json;

use super::*;

const GUEST: GuestName<'_> = GuestName {
    instance_id: "web.default",
    host_name: "web",
};

const OVERWRITE: (&str, &str) = ("VirtletCloudInitUserDataOverwrite", "true");

fn parse(pairs: &[(&str, &str)]) -> Result<Option<GuestData>, AnnotationError> {
    let pair = |(key, value): &(&str, &str)| {
        let key = if key.starts_with("Virtlet") {
            (*key).to_owned()
        } else {
            format!("vmlet.dev/{key}")
        };
        (key, (*value).to_owned())
    };
    GuestData::from_pod(&pairs.iter().map(pair).collect())
}

fn source(kind: SourceKind, name: &str, pairs: &[(&str, &str)]) -> BTreeMap<Source, Content> {
    let pairs = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec()));
    let source = Source::new(kind, name).unwrap();
    [(source, Content(pairs.collect()))].into()
}

fn files(pairs: &[(&str, &str)], sources: &BTreeMap<Source, Content>) -> (Value, String) {
    let data = parse(pairs).unwrap().expect("guest data");
    let files = data.assemble(&GUEST, sources).unwrap();
    let meta_data = serde_json::from_slice(&files.meta_data).unwrap();
    (meta_data, String::from_utf8(files.user_data).unwrap())
}

fn user_data(pairs: &[(&str, &str)], sources: &BTreeMap<Source, Content>) -> Value {
    let (_, text) = files(pairs, sources);
    assert!(text.starts_with("#cloud-config\n"), "{text}");
    yaml::value(&text).unwrap()
}

#[test]
fn settings_without_data_request_nothing() {
    let is_requested = |pairs: &[_]| parse(pairs).unwrap().unwrap().is_requested();
    assert!(!is_requested(&[("memory", "1Gi")]));
    assert!(!is_requested(&[("VirtletCloudInitImageType", "NoCloud")]));
    assert!(!is_requested(&[OVERWRITE]));
    assert!(!is_requested(&[("VirtletForceDHCPNetworkConfig", "true")]));
    assert!(!is_requested(&[("cloud-init-meta-data", "# nothing")]));
    assert!(is_requested(&[("ssh-keys", "ssh-ed25519 AAAA a")]));
    assert!(is_requested(&[(
        "VirtletFilesFromDataSource",
        "secret/files"
    )]));
}

#[test]
fn a_pod_may_have_no_disk_for_cloud_init_and_then_no_data_for_it() {
    let off = ("cloud-init", "off");
    assert_eq!(parse(&[off]), Ok(None));
    let refused = parse(&[("ssh-keys", "k"), off]).unwrap_err();
    assert_eq!(refused.name, "vmlet.dev/cloud-init");
    assert!(parse(&[("cloud-init", "auto")]).unwrap().is_some());
}

#[rstest]
#[case::both(&[], "configmap keys, secret seed")]
#[case::nothing_to_overwrite_with(&[OVERWRITE], "configmap keys, secret seed")]
#[case::written_beside(&[("cloud-init-user-data", "a: 1"), ("ssh-keys", "k")], "configmap keys, secret seed")]
#[case::written_instead(&[("cloud-init-user-data", "a: 1"), OVERWRITE], "configmap keys")]
#[case::keys_written_instead(&[("ssh-keys", "k"), OVERWRITE], "secret seed")]
fn a_source_is_read_when_something_of_it_is_used(
    #[case] more: &[(&str, &str)],
    #[case] used: &str,
) {
    let sources = [
        ("cloud-init-user-data-source", "secret/seed"),
        ("ssh-keys-source", "configmap/keys"),
    ];
    let data = parse(&[&sources, more].concat()).unwrap().unwrap();
    let names: Vec<_> = data.sources().iter().map(Source::to_string).collect();
    assert_eq!(names.join(", "), used);
    assert!(format!("{data:?}").contains("sources"));
}

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

#[test]
fn meta_data_name_the_guest_and_its_keys_and_the_pods_own_win() {
    let pairs = [
        ("ssh-keys", " ssh-ed25519 AAAA a \n\n ssh-rsa BBBB b\n"),
        ("cloud-init-meta-data", "{local-hostname: mine, more: [1]}"),
    ];
    let wanted = json!({
        "instance-id": "web.default",
        "local-hostname": "mine",
        "public-keys": ["ssh-ed25519 AAAA a", "ssh-rsa BBBB b"],
        "more": [1],
    });
    assert_eq!(files(&pairs, &BTreeMap::new()).0, wanted);
    let named = files(&[("cloud-init-instance-id", "i-1")], &BTreeMap::new());
    assert_eq!(named.0["instance-id"], "i-1");
    // The line alone stops some versions of cloud-init.
    assert_eq!(named.1, "#cloud-config\n{}\n");
}

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
#[case(&[("cloud-init-user-data", "#!/bin/sh")], "cloud-init-user-data-script")]
#[case(&[("cloud-init-user-data", "[a]")], "YAML map")]
#[case(&[("cloud-init-user-data", "a: 1\nb: {")], "no YAML")]
#[case(&[("cloud-init-user-data", "a: 1\n  b: 2")], "line 2, column 4")]
#[case(&[("cloud-init-user-data-script", "#cloud-config\na: [")], "no YAML")]
#[case(&[("cloud-init", "on")], "\"auto\" and \"off\"")]
#[case(&[("cloud-init-network-version", "3")], "\"1\" and \"2\"")]
#[case(&[("force-dhcp", "yes")], "true")]
#[case(&[("files-from-data-source", "secret/a/b")], "all keys")]
#[case(&[("cloud-init-image-type", "configdrive"), ("cloud-init-network-config", "version: 2")], "OpenStack")]
#[case(&[("cloud-init-meta-data", "x")], "YAML map")]
#[case(&[("cloud-init-network-config", "- a")], "YAML map")]
#[case(&[("cloud-init-network-config-source", "secret/a/b/c")], "a key of")]
#[case(&[("cloud-init-network-config-source", "net")], "secret/NAME")]
#[case(&[("cloud-init-image-type", "floppy")], "nocloud")]
#[case(&[("cloud-init-instance-id", "a b")], "visible")]
#[case(&[("cloud-init-user-data-source", "pod/x")], "secret/NAME")]
#[case(&[("cloud-init-user-data-source", "secret/../x")], "secret/NAME")]
#[case(&[("cloud-init-user-data-source", "secret/")], "secret/NAME")]
#[case(&[("cloud-init-user-data-source", "secret/a/b/c")], "a key of")]
#[case(&[("cloud-init-user-data-source-key", "k")], "only with \
    vmlet.dev/cloud-init-user-data-source")]
#[case(&[("cloud-init-user-data-source", "secret/a"), ("cloud-init-user-data-source-key", "k k")], "a key of")]
#[case(&[("VirtletCloudInitUserDataSource", "secret/a"), ("VirtletCloudInitUserDataSourceEncoding", "gzip")], "base64")]
fn nonsense_is_refused_with_what_is_allowed(#[case] pairs: &[(&str, &str)], #[case] word: &str) {
    let error = parse(pairs).unwrap_err();
    assert!(error.to_string().contains(word), "{error}");
    let name = pairs[pairs.len() - 1].0;
    assert!(error.name.ends_with(name), "{error}");
}

#[test]
fn aliases_do_not_blow_a_text_up() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let many = vec![format!("*a{}", n - 1); 9].join(", ");
        text.push_str(&format!("a{n}: &a{n} [{many}]\n"));
    }
    parse(&[("cloud-init-user-data", &text)]).unwrap_err();
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
fn what_is_logged_of_files_and_sources_is_how_much_there_is() {
    let data = parse(&[("cloud-init-user-data", "a: hunter2")]).unwrap();
    let made = data.unwrap().assemble(&GUEST, &BTreeMap::new()).unwrap();
    let shown = format!("{made:?}");
    assert!(shown.contains("user-data: 24 bytes"), "{shown}");
    let held = source(SourceKind::Secret, "seed", &[("k", "hunter2")]);
    let shown: Vec<_> = held
        .iter()
        .map(|(of, c)| (of.name(), format!("{c:?}")))
        .collect();
    assert_eq!(shown, [("seed", "1 keys".to_owned())]);
}

#[test]
fn a_plain_key_is_taken_as_it_is() {
    let held = source(SourceKind::Secret, "seed", &[("k", "IyEv")]);
    let pairs = [
        ("cloud-init-user-data-source", "secret/seed/k"),
        ("cloud-init-user-data-source-encoding", "plain"),
    ];
    assert_eq!(files(&pairs, &held).1, "IyEv");
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
fn a_config_drive_has_the_meta_data_of_openstack() {
    let pairs = [
        ("VirtletCloudInitImageType", "ConfigDrive"),
        ("ssh-keys", "ssh-ed25519 AAAA a\nssh-rsa BBBB b"),
        ("cloud-init-meta-data", "meta: {role: db}"),
        ("cloud-init-network-config", "links: []"),
    ];
    let data = parse(&pairs).unwrap().unwrap();
    let made = data.assemble(&GUEST, &BTreeMap::new()).unwrap();
    assert_eq!(made.layout, Layout::ConfigDrive);
    let meta_data: Value = serde_json::from_slice(&made.meta_data).unwrap();
    let wanted = json!({
        "uuid": "web.default", "hostname": "web", "name": "web", "meta": {"role": "db"},
        "public_keys": {"key-0": "ssh-ed25519 AAAA a", "key-1": "ssh-rsa BBBB b"},
    });
    assert_eq!(meta_data, wanted);
    let NetworkData::Given(network) = made.network else {
        panic!("{:?}", made.network);
    };
    assert_eq!(network, b"{\n  \"links\": []\n}\n");
}

#[rstest]
#[case::newest(&[], Some((NetworkVersion::V2, false)))]
#[case::old(&[("cloud-init-network-version", "1")], Some((NetworkVersion::V1, false)))]
#[case::dhcp(&[("VirtletForceDHCPNetworkConfig", "true")], Some((NetworkVersion::V2, true)))]
#[case::own(&[("force-dhcp", "true"), ("cloud-init-network-config", "version: 2")], None)]
fn the_network_is_the_pods_own_or_generated(
    #[case] pairs: &[(&str, &str)],
    #[case] generated: Option<(NetworkVersion, bool)>,
) {
    let data = parse(pairs).unwrap().unwrap();
    let made = data.assemble(&GUEST, &BTreeMap::new()).unwrap();
    let wanted = match generated {
        Some((version, dhcp)) => NetworkData::Generated { version, dhcp },
        None => NetworkData::Given(b"version: 2".to_vec()),
    };
    assert_eq!(made.network, wanted);
    let has_addresses = generated.is_some_and(|(_, dhcp)| !dhcp);
    assert_eq!(data.has_addresses(), has_addresses);
    assert!(data.has_searches());
    let drive = [pairs, &[("cloud-init-image-type", "configdrive")]].concat();
    if let Ok(Some(drive)) = parse(&drive) {
        assert_eq!(drive.has_searches(), !has_addresses);
    }
}

#[test]
fn an_object_has_files_in_the_order_of_their_paths() {
    let held = source(
        SourceKind::ConfigMap,
        "files",
        &[
            ("one", "aHVu\ndGVyMg=="),
            ("one_path", "/etc//./z"),
            ("two", "plain\n"),
            ("two_path", "/etc/a/b"),
            ("two_encoding", "plain"),
        ],
    );
    let data = parse(&[("files-from-data-source", "configmap/files")]);
    let made = data.unwrap().unwrap().assemble(&GUEST, &held).unwrap();
    let file = |path: &str, content: &[u8]| GuestFile {
        path: path.to_owned(),
        mode: 0o644,
        content: content.to_vec(),
    };
    let wanted = [file("/etc/a/b", b"plain\n"), file("/etc/z", b"hunter2")];
    assert_eq!(made.files, wanted);
    let shown = format!("{made:?}");
    assert!(shown.contains("/etc/z (0644, 7 bytes)"), "{shown}");
}

#[rstest]
#[case("/etc/hosts", true)]
#[case("etc/hosts", false)]
#[case("/", false)]
#[case("", false)]
#[case("/etc/./hosts/..", false)]
#[case("/etc/", false)]
#[case("/a\nb", false)]
fn a_file_has_an_absolute_path(#[case] path: &str, #[case] is_path: bool) {
    assert_eq!(GuestFile::is_path(path), is_path);
}

#[test]
fn a_mount_script_goes_into_scripts_only() {
    let with = |script: &str| {
        let data = parse(&[("VirtletCloudInitUserDataScript", script)]);
        let mut made = data
            .unwrap()
            .unwrap()
            .assemble(&GUEST, &BTreeMap::new())
            .unwrap();
        made.insert_mount_script("ln -s a b\n");
        String::from_utf8(made.user_data).unwrap()
    };
    let script = "#!/bin/sh\n@virtlet-mount-script@\ndate\n@virtlet-mount-script@";
    assert_eq!(with(script), "#!/bin/sh\nln -s a b\n\ndate\nln -s a b\n");
    let map = "#cloud-config\na: '@virtlet-mount-script@'\n";
    assert_eq!(with(map), map);
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

#[test]
fn answer_files_of_windows_setup_come_alone() {
    let sysprep = ("sysprep-source", "secret/answers");
    let data = parse(&[sysprep]).unwrap().unwrap();
    assert!(data.is_sysprep() && data.is_requested());
    let wanted = Source::new(SourceKind::Secret, "answers").unwrap();
    assert_eq!(data.sources(), [wanted].into());
    let held = |pairs| source(SourceKind::Secret, "answers", pairs);
    let found = data
        .answer_files(&held(&[("autounattend.xml", "<a/>"), ("other", "x")]))
        .unwrap()
        .unwrap();
    let name = "autounattend.xml";
    let content = b"<a/>".to_vec();
    assert_eq!(found, [AnswerFile { name, content }]);
    assert_eq!(format!("{found:?}"), "[autounattend.xml (4 bytes)]");
    let both = held(&[("autounattend.xml", "a"), ("unattend.xml", "b")]);
    assert_eq!(data.answer_files(&both).unwrap().unwrap().len(), 2);
    let error = data.answer_files(&held(&[("Unattend.XML", "hunter2")]));
    let error = error.unwrap_err().to_string();
    let words = "secret answers has no key unattend.xml and no key autounattend.xml";
    assert!(error.starts_with(words), "{error}");
    // cloud-init: off says nothing else.
    assert!(parse(&[sysprep, ("cloud-init", "off")]).unwrap().is_some());
    for (other, words) in [
        (("ssh-keys", "k"), "use one of them"),
        (
            ("VirtletCloudInitImageType", "configdrive"),
            "use one of them",
        ),
        (
            ("sysprep-source", "secret/answers/unattend.xml"),
            "its keys are",
        ),
    ] {
        let refused = parse(&[sysprep, other]).unwrap_err();
        assert_eq!(refused.name, "vmlet.dev/sysprep-source");
        assert!(refused.reason.contains(words), "{refused}");
    }
    let none = parse(&[]).unwrap().unwrap();
    assert_eq!(none.answer_files(&BTreeMap::new()), Ok(None));
}
