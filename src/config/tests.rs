//! Tests of layers, messages and `config show`.
//!
//! Invariant: the process environment is never touched; each test brings its own.
//! Failure: a failing test names the layer or the text that is wrong.

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory, Parser};
use rstest::rstest;
use service::telemetry;

use super::layer::Effective;
use super::schema::{Kind, SETTINGS};
use super::*;

fn nothing(_: &str) -> Option<OsString> {
    None
}

/// Loads with a file of this text, these variables and these flags.
fn load_layers(file: &str, variables: &[(&str, &str)], flags: &[&str]) -> Result<Effective> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmlet.toml");
    std::fs::write(&path, file).unwrap();
    let mut words = vec!["vmlet", "--config", path.to_str().unwrap()];
    words.extend(flags);
    let args = Args::try_parse_from(words).unwrap();
    load(&args, |name| {
        let found = variables.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| OsString::from(value))
    })
}

#[test]
fn the_command_line_is_consistent() {
    Args::command().debug_assert();
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
        let args = Args::try_parse_from(words).unwrap();
        let effective = load(&args, nothing).unwrap();
        assert_eq!(&*effective.config.log.level, "trace");
        assert!(matches!(
            args.command,
            Some(Command::Config(ConfigCommand::Show))
        ));
    }
}

#[rstest]
#[case::unknown_key("[vm]\nacelerator = \"kvm\"\n", "line 2, column 1", "acelerator")]
#[case::unknown_section("[virt]\n", "line 1, column 2", "virt")]
#[case::relative_path("listen = \"vmlet.sock\"\n", "line 1, column 10", "absolute path")]
#[case::climbing_path("listen = \"/run/../x\"\n", "line 1, column 10", "absolute path")]
#[case::bad_word("[vm]\naccelerator = \"xen\"\n", "line 2, column 15", "auto, kvm, tcg")]
#[case::zero_time(
    "[libvirt]\ncall_timeout_secs = 0\n",
    "line 2, column 21",
    "1 to 86400"
)]
#[case::text_for_number(
    "[libvirt]\nparallel_calls = \"8\"\n",
    "line 2, column 18",
    "whole number"
)]
#[case::number_for_text("[vm]\ndefault_memory = 512\n", "line 2, column 18", "string")]
#[case::bad_size(
    "[images]\nmax_download = \"big\"\n",
    "line 2, column 16",
    "not a quantity"
)]
#[case::bad_filter("[log]\nlevel = \"a=b=c\"\n", "line 2, column 9", "level filter")]
#[case::syntax("listen = \n", "line 1", "")]
#[case::both(
    "[[images.translations]]\nname = \"a\"\nprefix = \"b\"\nurl = \"h/p\"\n",
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
    assert!(matches!(error, Error::Conflict(_)), "{error}");
    let same = ["--listen", "/s", "--network-handoff-socket", "/s"];
    let error = load_layers("", &[], &same).unwrap_err();
    assert!(error.to_string().contains("same socket"), "{error}");
}

#[test]
fn a_named_file_must_exist() {
    let args = Args::try_parse_from(["vmlet", "--config", "/nonexistent/vmlet.toml"]).unwrap();
    assert!(matches!(load(&args, nothing), Err(Error::File(_))));
}

#[test]
fn what_is_shown_names_origins_and_loads_to_the_same_again() {
    let file = "[images]\nca_file = \"/ca.pem\"\n\
                [[images.translations]]\nprefix = \"a\\\"b/\"\nurl = \"https://h/p\"\n";
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
    assert_eq!(first.config.texts(), second.config.texts());
    let translations = |e: &Effective| e.config.images.translations.clone();
    assert_eq!(translations(&first), translations(&second));
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
fn names_of_variables_and_flags_never_collide() {
    let plain = || SETTINGS.iter().filter(|s| s.kind != Kind::Tables);
    for of in [
        |s: &Setting| s.variable.clone(),
        |s: &Setting| s.flag.clone(),
    ] {
        let names: std::collections::BTreeSet<_> = plain().map(of).collect();
        assert_eq!(names.len(), plain().count());
    }
}
