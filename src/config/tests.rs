//! Tests of layers, messages and `config show`.
//!
//! Invariant: the process environment is never touched; each test brings its own.
//! Failure: a failing test names the layer or the text that is wrong.

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory, Parser};
use rstest::rstest;
use service::settings::{Effective, Error, Flags, check_page, layered, show};
use service::telemetry::{self, Format};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    settings: Flags<Config>,
    #[command(subcommand)]
    command: Option<service::settings::Command>,
}

/// Loads with a file of this text, these variables and these flags.
fn load_layers(
    file: &str,
    variables: &[(&str, &str)],
    flags: &[&str],
) -> Result<Effective<Config>, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmlet.toml");
    std::fs::write(&path, file).unwrap();
    let line = ["vmlet", "--config", path.to_str().unwrap()];
    let line = Line::try_parse_from(line.iter().chain(flags)).unwrap();
    let variables = variables
        .iter()
        .map(|(k, v)| (OsString::from(k), OsString::from(v)));
    layered(&line.settings, variables)
}

const EXAMPLE: &str = r#"
## Example

```toml
[log]
format = "json"

[vm]
default_memory = "512Mi"

[images]
ca_file = "/etc/vmlet/registry-ca.pem"

[[images.translations]]
name = "debian"
url = "https://images.example.org/debian-12.qcow2"

[[images.translations]]
prefix = "golden/"
url = "https://images.example.org/golden"

[[images.translations]]
regexp = "^ubuntu/([0-9.]+)$"
url = "https://images.example.org/ubuntu-$1.img"
```
"#;

#[test]
fn the_reference_page_describes_these_settings() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let rest = format!(
        "\nPaths are absolute. Sizes are Kubernetes quantities such as `512Mi`.\n{EXAMPLE}"
    );
    check_page::<Config>(&page, &rest).unwrap();
}

#[test]
fn the_example_of_the_page_is_a_valid_file() {
    let file = EXAMPLE.split("```toml").nth(1).unwrap();
    load_layers(file.split("```").next().unwrap(), &[], &[]).unwrap();
}

#[test]
fn the_command_line_is_consistent() {
    Line::command().debug_assert();
}

#[test]
fn every_default_is_valid() {
    let effective = load_layers("", &[], &[]).unwrap();
    assert_eq!(
        *effective.config.listen,
        *Path::new("/run/vmlet/vmlet.sock")
    );
    assert_eq!(effective.config.vm.default_memory.bytes(), 1 << 30);
    assert_eq!(effective.config.images.max_download.bytes(), 64 << 30);
    assert_eq!(*effective.config.images.ca_file, None);
    assert!(effective.config.images.translations.is_empty());
    assert!(effective.config.images.convert.is_empty());
}

#[test]
fn the_files_of_new_installations_refuse_image_servers_with_private_addresses() {
    for file in [
        include_str!("../../deploy/node/vmlet.toml"),
        include_str!("../../deploy/systemd/vmlet.toml"),
    ] {
        let images = load_layers(file, &[], &[]).unwrap().config.images;
        assert_eq!(images.private_addresses, PrivateAddresses::Refuse);
    }
    let usual = load_layers("", &[], &[]).unwrap().config.images;
    assert_eq!(usual.private_addresses, PrivateAddresses::Allow);
    assert_eq!(usual.raw_data, RawData::Refuse);
}

#[test]
fn formats_are_converted_that_the_list_has() {
    let file = "[images]\nconvert = [\"vmdk\"]\n";
    let formats = |effective: Effective<Config>| effective.config.images.convert;
    let effective = load_layers(file, &[], &[]).unwrap();
    assert_eq!(formats(effective), [ConvertedFormat::Vmdk]);
    let both = [ConvertedFormat::Vhdx, ConvertedFormat::Vmdk];
    let list = "vhdx,vmdk";
    let effective = load_layers("", &[("VMLET_IMAGES_CONVERT", list)], &[]).unwrap();
    assert_eq!(formats(effective), both);
    let effective = load_layers(file, &[], &["--images-convert", list]).unwrap();
    assert_eq!(formats(effective), both);
}

#[test]
fn each_layer_wins_over_the_ones_before_it() {
    let file = "state_dir = \"/file\"\n[log]\nlevel = \"warn\"\n[vm]\ndefault_vcpus = 2\n";
    let variables = [
        ("VMLET_LOG_LEVEL", "debug"),
        ("VMLET_VM_DEFAULT_VCPUS", "3"),
    ];
    let effective = load_layers(file, &variables, &["--vm-default-vcpus", "4"]).unwrap();
    let config = &effective.config;
    assert_eq!(*config.state_dir, *Path::new("/file"));
    assert_eq!(&*config.log.level, "debug");
    assert_eq!(config.vm.default_vcpus.get(), 4);
    assert_eq!(config.log.format, Format::Text);
}

#[test]
fn flags_are_understood_before_and_after_the_subcommand() {
    for words in [
        ["vmlet", "--log-level", "trace", "config", "show"],
        ["vmlet", "config", "show", "--log-level", "trace"],
    ] {
        let line = Line::try_parse_from(words).unwrap();
        let effective = layered(&line.settings, []).unwrap();
        assert_eq!(&*effective.config.log.level, "trace");
        assert!(line.command.is_some());
    }
}

#[rstest]
#[case::unknown_key("[vm]\nacelerator = \"kvm\"\n", "line 2, column 1", "acelerator")]
#[case::unknown_section("[virt]\n", "line 1, column 2", "virt")]
#[case::relative_path("listen = \"vmlet.sock\"\n", "line 1, column 10", "absolute path")]
#[case::climbing_path("listen = \"/run/../x\"\n", "line 1, column 10", "absolute path")]
#[case::bad_word(
    "[vm]\naccelerator = \"xen\"\n",
    "line 2, column 15",
    "`auto`, `kvm`, `tcg`"
)]
#[case::no_unit("[libvirt]\ncall_timeout = 5\n", "line 2, column 16", "5 has no unit")]
#[case::text_for_number(
    "[libvirt]\nparallel_calls = \"8\"\n",
    "line 2, column 18",
    "expected i64"
)]
#[case::number_for_text("[vm]\ndefault_memory = 512\n", "line 2, column 18", "string")]
#[case::bad_size(
    "[images]\nmax_download = \"big\"\n",
    "line 2, column 16",
    "not a quantity"
)]
#[case::bad_filter("[log]\nlevel = \"a=b=c\"\n", "line 2, column 9", "level filter")]
#[case::bad_format("[images]\nconvert = [\"vdi\"]\n", "line 2, column 12", "vmdk")]
#[case::bad_word(
    "[images]\nraw_data = \"maybe\"\n",
    "line 2, column 12",
    "`allow` or `refuse`"
)]
#[case::syntax("listen = \n", "line 1", "")]
#[case::both(
    "[[images.translations]]\nname = \"a\"\nprefix = \"b\"\nurl = \"h/p\"\n",
    "line 1",
    "either"
)]
#[case::prefix_and_regexp(
    "[[images.translations]]\nprefix = \"a\"\nregexp = \"b\"\nurl = \"h/p\"\n",
    "line 1",
    "either"
)]
fn a_bad_file_is_refused_with_its_position(
    #[case] file: &str,
    #[case] position: &str,
    #[case] reason: &str,
) {
    let text = telemetry::one_line(&load_layers(file, &[], &[]).unwrap_err());
    assert!(text.contains("vmlet.toml"), "{text}");
    assert!(text.contains(position), "{text}");
    assert!(text.contains(reason), "{text}");
}

#[test]
fn bad_texts_are_refused_with_the_variable_or_the_flag() {
    let error = load_layers("", &[("VMLET_VM_ACCELERATOR", "fast")], &[]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("environment VMLET_VM_ACCELERATOR: \"fast\""),
        "{text}"
    );
    let error = load_layers("", &[], &["--vm-default-memory", "12"]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("flag --vm-default-memory"), "{text}");
}

#[test]
fn a_bad_value_is_refused_even_when_a_later_layer_replaces_it() {
    let variables = [("VMLET_LOG_FORMAT", "xml")];
    assert!(load_layers("", &variables, &["--log-format", "json"]).is_err());
}

#[test]
fn sockets_must_be_short_and_different() {
    let long = format!("/{}", "x".repeat(120));
    let error = load_layers("", &[], &["--listen", &long]).unwrap_err();
    assert!(
        error.to_string().contains("longer than 107 bytes"),
        "{error}"
    );
    let same = ["--listen", "/s", "--network-handoff-socket", "/s"];
    let error = load_layers("", &[], &same).unwrap_err();
    assert!(error.to_string().contains("same socket"), "{error}");
}

#[test]
fn a_timeout_out_of_range_is_refused() {
    for text in ["0s", "25h"] {
        let error = load_layers("", &[], &["--libvirt-call-timeout", text]).unwrap_err();
        let expected = format!("libvirt.call_timeout is {text}, must be from 1s to 24h");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn variables_of_other_programs_are_ignored_and_unknown_variables_are_refused() {
    let others = [("VMLET_AGENT_NODE", "n1"), ("VMLET_START_TOKEN", "x")];
    load_layers("", &others, &[]).unwrap();
    let error = load_layers("", &[("VMLET_VM_ACCEL", "kvm")], &[]).unwrap_err();
    assert!(error.to_string().contains("VMLET_VM_ACCEL"), "{error}");
    let sections = serde_json::to_value(Config::default()).unwrap();
    let sections = sections.as_object().unwrap().iter();
    for (section, _) in sections.filter(|(_, value)| value.is_object()) {
        let variable = format!("VMLET_{}_X", section.to_uppercase());
        assert!(Config::owns(&variable), "{variable} is ignored");
    }
}

#[rstest]
#[case("high_water_percent = 101", "images.high_water_percent is 101")]
#[case("low_water_percent = 90", "images.low_water_percent is 90")]
#[case("high_water_percent = 85", "images.low_water_percent is 85")]
#[case("max_unused_age = \"299s\"", "images.max_unused_age is 4m59s")]
fn the_collection_of_images_has_marks_in_order(#[case] line: &str, #[case] words: &str) {
    let error = load_layers(&format!("[images]\n{line}\n"), &[], &[]).unwrap_err();
    let text = telemetry::one_line(&error);
    assert!(text.contains(words), "{text}");
    for line in ["high_water_percent = 0", "max_unused_age = \"5m\""] {
        load_layers(&format!("[images]\n{line}\n"), &[], &[]).unwrap();
    }
}

#[rstest]
#[case("uid = 0", "shares.uid is 0")]
#[case("gid = 0", "shares.gid is 0")]
#[case("uid = 4294967295", "shares.uid is 4294967295")]
fn shares_are_never_served_as_root(#[case] line: &str, #[case] words: &str) {
    let error = load_layers(&format!("[shares]\n{line}\n"), &[], &[]).unwrap_err();
    assert!(error.to_string().contains(words), "{error}");
}

#[rstest]
#[case::tls("endpoint = \"https://collector:4317\"", "https is not supported")]
#[case::no_scheme("endpoint = \"127.0.0.1:4317\"", "http://127.0.0.1:4317 is allowed")]
#[case::no_port("endpoint = \"http://collector\"", "with a port")]
#[case::path("endpoint = \"http://collector:4318/v1/traces\"", "is allowed")]
#[case::credentials("endpoint = \"http://user:secret@collector:4317\"", "is allowed")]
#[case::rate(
    "endpoint = \"http://collector:4317\"\nsampling_rate_per_million = 1000001",
    "tracing.sampling_rate_per_million is 1000001"
)]
#[case::no_collector("sampling_rate_per_million = 1", "without tracing.endpoint")]
fn what_traces_cannot_use_is_refused(#[case] lines: &str, #[case] words: &str) {
    let error = load_layers(&format!("[tracing]\n{lines}\n"), &[], &[]).unwrap_err();
    let text = telemetry::one_line(&error);
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_collector_needs_a_build_that_has_traces() {
    let variables = [
        ("VMLET_TRACING_ENDPOINT", "http://127.0.0.1:4317"),
        ("VMLET_TRACING_SAMPLING_RATE_PER_MILLION", "100"),
    ];
    let loaded = load_layers("", &variables, &[]);
    assert_eq!(loaded.is_ok(), cfg!(feature = "otel"), "{loaded:?}");
    let mut config = Config::default();
    config.tracing.endpoint = Some(variables[0].1.to_owned().try_into().unwrap());
    config.tracing.sampling_rate_per_million = 100;
    if let Ok(loaded) = loaded {
        assert_eq!(loaded.config.tracing, config.tracing);
    }
    check::tracing(&config, true).unwrap();
    let text = check::tracing(&config, false).unwrap_err();
    assert!(text.contains("build with --features otel"), "{text}");
}

#[test]
fn a_named_file_must_exist() {
    let line = Line::try_parse_from(["vmlet", "--config", "/nonexistent/vmlet.toml"]).unwrap();
    assert!(matches!(
        layered(&line.settings, []),
        Err(Error::Read { .. })
    ));
}

#[test]
fn what_is_shown_names_origins_and_loads_to_the_same_again() {
    let file = "[images]\nca_file = \"/ca.pem\"\n\
                [[images.translations]]\nprefix = \"a\\\"b/\"\nurl = \"https://h/p\"\n\
                [[images.translations]]\nregexp = \"^a\\\\.(.*)$\"\nurl = \"https://h/$1\"\n";
    let variables = [("VMLET_STATE_DIR", "/s\\tate")];
    let first = load_layers(file, &variables, &["--libvirt-parallel-calls", "3"]).unwrap();
    let text = show(&first);
    for line in [
        "listen = \"/run/vmlet/vmlet.sock\"  # default",
        "# environment VMLET_STATE_DIR",
        "parallel_calls = 3  # flag --libvirt-parallel-calls",
        "ca_file = \"/ca.pem\"  # file /",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    let second = load_layers(&text, &[], &[]).unwrap();
    assert_eq!(first.config, second.config);
}

#[test]
fn credentials_of_translations_are_shown_nowhere() {
    let file = "[[images.translations]]\nname = \"a\"\n\
                url = \"https://user:secret@h:8/p/q?token=secret\"\n";
    let effective = load_layers(file, &[], &[]).unwrap();
    let text = format!("{}{:?}", show(&effective), effective.config);
    assert!(!text.contains("secret"), "{text}");
    assert!(text.contains("https://…@h:8/p/q?…"), "{text}");
}

#[test]
fn sessions_need_an_address_to_connect_to() {
    for address in ["0.0.0.0:0", "[::]:10010"] {
        let error = load_layers("", &[("VMLET_STREAMING_LISTEN", address)], &[]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("streaming.listen") && text.contains(address),
            "{text}"
        );
    }
    let effective = load_layers("", &[("VMLET_STREAMING_LISTEN", "[::1]:10010")], &[]).unwrap();
    assert!(effective.config.streaming.listen.ip().is_loopback());
}

#[test]
fn sessions_beyond_the_node_need_tls() {
    let cert = ("VMLET_STREAMING_TLS_CERT", "/tls/cert");
    let key = ("VMLET_STREAMING_TLS_KEY", "/tls/key");
    let beyond = ("VMLET_STREAMING_LISTEN", "192.0.2.1:10010");
    for variables in [&[beyond][..], &[cert], &[beyond, key]] {
        let error = load_layers("", variables, &[]).unwrap_err();
        assert!(error.to_string().contains("tls_cert"), "{error}");
    }
    let effective = load_layers("", &[beyond, cert, key], &[]).unwrap();
    assert_eq!(effective.config.streaming.listen.port(), 10010);
}
