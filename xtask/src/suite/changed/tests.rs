use super::*;

/// vmlet and agent are programs; lib is in both, kit only in the tests of vmlet.
const METADATA: &str = r#"{ "workspace_root": "/x", "packages": [
    { "name": "vmlet", "manifest_path": "/x/Cargo.toml", "dependencies": [
        { "kind": null, "path": "/x/libs/lib" }, { "kind": "dev", "path": "/x/libs/kit" }, { "kind": null } ] },
    { "name": "vmlet-agent", "manifest_path": "/x/agent/Cargo.toml", "dependencies": [
        { "kind": "build", "path": "/x/libs/lib" } ] },
    { "name": "lib", "manifest_path": "/x/libs/lib/Cargo.toml", "dependencies": [] },
    { "name": "kit", "manifest_path": "/x/libs/kit/Cargo.toml", "dependencies": [] },
    { "name": "fuzzchecks", "manifest_path": "/x/tests/fuzz/Cargo.toml", "dependencies": [
        { "kind": null, "path": "/x" } ] } ] }"#;

const SOURCES: [(&str, &str); 6] = [
    (
        "tests/e2e/tests/stacks/exec.rs",
        "use super::cases; cases::one()",
    ),
    ("tests/e2e/tests/stacks/pods.rs", "exec::all()"),
    ("tests/e2e/tests/stacks/disks.rs", "my_exec::all()"),
    ("tests/e2e/tests/api/pods.rs", "exec::all()"),
    (
        "src/config/tests.rs",
        "include_str!(\"../../docs/configuration.md\")",
    ),
    (
        "libs/lib/src/unit.rs",
        "include_str!(\"../../../deploy/systemd/x.service\")",
    ),
];

/// What is chosen, for one file or more.
fn chosen(files: &[&str]) -> Selection {
    let packages = Packages::parse(METADATA).unwrap();
    let sources = SOURCES.map(|(file, text)| (file.to_owned(), text.to_owned()));
    let chooser = Chooser {
        packages: &packages,
        sources: &BTreeMap::from(sources),
    };
    let files: Vec<_> = files.iter().map(|file| (*file).to_owned()).collect();
    chooser.choose(&files)
}

fn names(selection: &Selection) -> Vec<&str> {
    match selection {
        Selection::Everything(file) => vec!["everything", file.as_str()],
        Selection::Tests(tests) => tests.keys().map(String::as_str).collect(),
    }
}

#[test]
fn a_source_affects_what_is_built_of_it_and_the_tests_that_run_that() {
    let daemon = ["clusters", "critest", "fuzzchecks", "stacks", "vmlet"];
    assert_eq!(names(&chosen(&["src/vm/power.rs"])), daemon);
    assert_eq!(names(&chosen(&["tests/domain_xml.rs"])), daemon);
    let of_lib = chosen(&["libs/lib/src/lib.rs"]);
    let expected = [
        "api",
        "clusters",
        "critest",
        "fuzzchecks",
        "lib",
        "stacks",
        "vmlet",
        "vmlet-agent",
    ];
    assert_eq!(names(&of_lib), expected);
    // vmlet is as it was, and so is what is built of it.
    assert_eq!(names(&chosen(&["libs/kit/src/lib.rs"])), ["kit", "vmlet"]);
    let Selection::Tests(reasons) = of_lib else {
        panic!("everything");
    };
    assert_eq!(reasons["lib"], "libs/lib/src/lib.rs");
    assert_eq!(reasons["vmlet"], "built of lib: libs/lib/src/lib.rs");
    assert_eq!(reasons["stacks"], "runs vmlet: libs/lib/src/lib.rs");
}

#[test]
fn a_test_of_a_stack_affects_itself_and_the_modules_that_use_it() {
    let exec = chosen(&["tests/e2e/tests/stacks/exec.rs"]);
    assert_eq!(names(&exec), ["stacks::exec", "stacks::pods"]);
    assert!(exec.has("stacks::exec::commands_run"));
    assert!(!exec.has("stacks::execs::x") && !exec.has("stacks::disks::x"));
    assert_eq!(exec.parts(), [Part::Fmt, Part::Stacks]);
    let all = ["stacks::cases", "stacks::exec", "stacks::pods"];
    for file in ["cases.rs", "cases/more.rs"] {
        assert_eq!(
            names(&chosen(
                &[format!("tests/e2e/tests/stacks/{file}").as_str()]
            )),
            all
        );
    }
    assert_eq!(
        names(&chosen(&["tests/e2e/tests/stacks/main.rs"])),
        ["stacks"]
    );
}

#[test]
fn pages_affect_the_tests_of_pages() {
    let page = chosen(&["docs/glossary.md"]);
    assert_eq!(names(&page), ["api::rules", "xtask"]);
    assert_eq!(
        page.parts(),
        [Part::Fmt, Part::Unit, Part::Integration, Part::Api]
    );
    // A test of vmlet reads it: no program of vmlet changes.
    let page = chosen(&["docs/configuration.md"]);
    assert_eq!(names(&page), ["api::rules", "vmlet", "xtask"]);
    // A program has it.
    let mut with_unit = names(&chosen(&["libs/lib/src/lib.rs"])).join(" ");
    with_unit += " xtask";
    assert_eq!(
        names(&chosen(&["deploy/systemd/x.service"])).join(" "),
        with_unit
    );
}

#[test]
fn an_unknown_file_and_those_that_all_crates_are_built_by_affect_everything() {
    for file in ["Cargo.lock", ".cargo/config.toml", "new-folder/file"] {
        let all = chosen(&["docs/glossary.md", file]);
        assert_eq!(names(&all), ["everything", file]);
        assert!(all.has("critest"));
        assert_eq!(all.parts(), Part::all());
    }
    let none = chosen(&[".gitignore"]);
    assert!(none.is_empty() && !none.has("vmlet"));
    assert!(chosen(&[]).is_empty());
}

#[test]
fn tests_of_a_package_are_all_its_programs_and_no_others() {
    let agent = chosen(&["agent/src/lib.rs"]);
    for job in [
        "vmlet-agent",
        "vmlet-agent as root",
        "vmlet-agent::bin::x as root",
        "api::agent::x",
    ] {
        assert!(agent.has(job), "{job}");
    }
    for job in ["vmlet", "vmlet::agent", "stacks::x", "deny"] {
        assert!(!agent.has(job), "{job}");
    }
}

#[test]
fn the_tables_name_what_there_is() {
    let root = workspace::root();
    for path in table::paths() {
        let (folder, start) = path.rsplit_once('/').unwrap_or(("", path));
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        let mut names = entries.map(|entry| entry.unwrap().file_name());
        let is_there = names.any(|name| name.to_string_lossy().starts_with(start));
        assert!(is_there, "the table of files has {path}");
    }
    let packages = Packages::read().unwrap();
    for name in table::names() {
        let program = name.split_once("::");
        let module = program
            .map(|(program, module)| root.join(format!("tests/e2e/tests/{program}/{module}.rs")));
        let is_there = match module {
            Some(file) => file.exists(),
            None => {
                Part::all().iter().any(|part| part.to_string() == name) || packages.contains(name)
            }
        };
        assert!(is_there, "the tables have {name}");
    }
}

/// The tree as it is: what belongs to nothing would choose everything.
#[test]
fn files_of_each_kind_belong_to_something() {
    let root = workspace::root();
    let sources = files::sources(&root).unwrap();
    let packages = Packages::read().unwrap();
    let chooser = Chooser {
        packages: &packages,
        sources: &sources,
    };
    for (file, test) in [
        ("docs/observability.md", "vmlet"),
        ("docs/installer.md", "vmlet-installer"),
        ("tests/fixtures/cri-fields.tsv", "cri-proto"),
        ("deploy/image/libvirtd", "libvirt"),
        ("tests/e2e/tests/clusters/hooks.rs", "clusters::probes"),
        ("tests/e2e/src/wait.rs", "stacks"),
        ("libs/cni/src/lib.rs", "tapmanager"),
        ("libs/fdpass/src/lib.rs", "vmwrapper"),
        ("guest/src/lib.rs", "vmlet"),
        ("proto/proto/api.proto", "criproxy"),
        ("fuzz/Cargo.toml", "fuzzchecks"),
        ("xtask/guest/init", "clusters"),
    ] {
        let selection = chooser.choose(&[file.to_owned()]);
        let Selection::Tests(tests) = &selection else {
            panic!("{file}: {selection}");
        };
        assert!(tests.contains_key(test), "{file}: {selection}");
    }
    let of_crates = sources
        .keys()
        .filter(|file| Module::of_file(file).is_none());
    let unknown = of_crates.filter(|file| {
        let chosen = chooser.choose(&[(*file).clone()]);
        matches!(chosen, Selection::Everything(_))
    });
    assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&String>::new());
}
