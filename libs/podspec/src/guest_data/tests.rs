//! Guest data from annotations and sources.
//!
//! Invariant: the merge rules are the predecessor's; what a source holds shows in no message.
//! Failure: a message with the files.

use rstest::rstest;

use serde_json::json;

use super::*;

mod sources;
mod user_data;

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
