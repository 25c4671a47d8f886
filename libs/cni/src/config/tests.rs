//! Configurations that hold, and those that must not.
//!
//! Invariant: each case differs from a sound one in a single point.
//! Failure: a case that is wrongly taken or refused.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::{ConfigError, NetworkConfig, load};

fn parse(value: &Value) -> Result<NetworkConfig, ConfigError> {
    NetworkConfig::parse(value.to_string().as_bytes())
}

fn list() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "bridge", "bridge": "br0", "unknown": {"kept": [1, 2]}},
        {"type": "portmap", "capabilities": {"portMappings": true, "off": false}},
    ]})
}

#[test]
fn a_list_keeps_its_order_and_unknown_fields() {
    let config = parse(&list()).unwrap();
    assert_eq!(config.name(), "net");
    assert_eq!(config.version().to_string(), "1.0.0");
    let kinds: Vec<&str> = config.plugins().iter().map(|p| p.kind()).collect();
    assert_eq!(kinds, ["bridge", "portmap"]);
    assert_eq!(
        config.plugins()[0].config()["unknown"],
        json!({"kept": [1, 2]})
    );
    assert!(config.plugins()[1].has_capability("portMappings"));
    assert!(!config.plugins()[1].has_capability("off"));
    assert!(!config.plugins()[0].has_capability("portMappings"));
}

#[test]
fn a_single_plugin_is_a_list_of_one() {
    let config =
        parse(&json!({"cniVersion": "0.4.0", "name": "n", "type": "ptp", "mtu": 9000})).unwrap();
    assert_eq!(config.plugins().len(), 1);
    assert_eq!(config.plugins()[0].config()["mtu"], 9000);
    let again = NetworkConfig::parse(&config.to_bytes()).unwrap();
    assert_eq!(again.plugins(), config.plugins());
}

#[rstest]
#[case(json!("0.3.1"), json!(null), "0.3.1")]
#[case(json!("0.4.0"), json!(["0.4.0", "1.1.0", "1.0.0"]), "1.1.0")]
#[case(json!("1.0.0"), json!(["9.0.0", "nonsense", 7]), "1.0.0")]
#[case(json!(null), json!(["0.3.1", "2.0.0"]), "0.3.1")]
fn the_newest_version_that_both_know_is_spoken(
    #[case] one: Value,
    #[case] many: Value,
    #[case] want: &str,
) {
    let mut config = list();
    config["cniVersion"] = one;
    config["cniVersions"] = many;
    assert_eq!(parse(&config).unwrap().version().to_string(), want);
}

#[rstest]
#[case("name", json!("a/b"))]
#[case("name", json!(null))]
#[case("name", json!(5))]
#[case("cniVersion", json!("0.2.0"))]
#[case("cniVersion", json!("2.0.0"))]
#[case("cniVersion", json!(""))]
#[case("cniVersions", json!("1.0.0"))]
#[case("plugins", json!([]))]
#[case("plugins", json!("bridge"))]
#[case("plugins", json!(["bridge"]))]
#[case("plugins", json!([{"type": "../../bin/sh"}]))]
#[case("plugins", json!([{"type": "/bin/sh"}]))]
#[case("plugins", json!([{"type": ""}]))]
#[case("plugins", json!([{}]))]
#[case("plugins", json!(vec![json!({"type": "x"}); 33]))]
#[case("disableCheck", json!("maybe"))]
#[case("disableGC", json!(1))]
fn a_configuration_with_one_fault_is_refused(#[case] name: &str, #[case] value: Value) {
    let mut config = list();
    config[name] = value;
    assert!(parse(&config).is_err());
}

#[test]
fn switches_may_be_strings() {
    let mut config = list();
    config["disableCheck"] = json!("True");
    config["disableGC"] = json!(true);
    let config = parse(&config).unwrap();
    assert!(config.disable_check() && config.disable_gc());
}

#[test]
fn the_first_usable_file_wins_and_others_are_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    put("00-broken.conf", "{");
    put("05-note.txt", "not a configuration");
    put("10-net.conflist", &list().to_string());
    put(
        "20-late.json",
        r#"{"cniVersion":"1.0.0","name":"late","type":"ptp"}"#,
    );
    std::fs::create_dir(dir.path().join("01-dir.conf")).unwrap();
    nix::unistd::mkfifo(
        &dir.path().join("02-pipe.conf"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    let config = load(dir.path()).unwrap();
    assert_eq!(config.name(), "net");
    assert_eq!(config.file().unwrap(), dir.path().join("10-net.conflist"));
}

#[test]
fn when_no_file_is_usable_every_reason_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.conf"), "{").unwrap();
    std::fs::write(
        dir.path().join("b.conflist"),
        r#"{"name":"b","cniVersion":"1.0.0"}"#,
    )
    .unwrap();
    std::fs::write(dir.path().join("c.json"), vec![b' '; 1024 * 1024 + 1]).unwrap();
    let error = load(dir.path()).unwrap_err().to_string();
    for part in [
        "a.conf: not JSON: EOF",
        "b.conflist: plugins: no plugin",
        "c.json",
        "larger than",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(load(empty.path()), Err(ConfigError::None { .. })));
    assert!(matches!(
        load(&empty.path().join("none")),
        Err(ConfigError::None { .. })
    ));
}

#[test]
fn a_folder_named_after_the_network_adds_plugins_unless_forbidden() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("net.conflist");
    std::fs::write(&file, list().to_string()).unwrap();
    std::fs::create_dir(dir.path().join("net")).unwrap();
    std::fs::write(dir.path().join("net/10.conf"), r#"{"type":"tuning"}"#).unwrap();
    let config = load(dir.path()).unwrap();
    assert_eq!(config.plugins().last().unwrap().kind(), "tuning");
    let again = NetworkConfig::parse(&config.to_bytes()).unwrap();
    assert_eq!(
        again.plugins(),
        config.plugins(),
        "the cache needs no folder"
    );

    let mut inlined = list();
    inlined["loadOnlyInlinedPlugins"] = json!(true);
    std::fs::write(&file, inlined.to_string()).unwrap();
    assert_eq!(load(dir.path()).unwrap().plugins().len(), 2);
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = NetworkConfig::parse(&bytes);
    }

    #[test]
    fn a_taken_configuration_survives_being_written(
        name in "[a-z][a-z0-9.-]{0,20}",
        kinds in proptest::collection::vec("[a-z][a-z-]{0,10}", 1..5),
    ) {
        let plugins: Vec<Value> = kinds.iter().map(|k| json!({"type": k, "x": [k]})).collect();
        let config = parse(&json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins})).unwrap();
        let again = NetworkConfig::parse(&config.to_bytes()).unwrap();
        prop_assert_eq!(again.plugins(), config.plugins());
        prop_assert_eq!(again.name(), config.name());
        prop_assert_eq!(again.version(), config.version());
    }
}
