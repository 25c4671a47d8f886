//! The document of this workspace, and of a small one.
//!
//! Invariant: cargo needs no network.
//! Failure: names the component.

use super::*;

fn component<'a>(parts: &'a Parts, name: &str) -> &'a Component {
    let mut all = parts.components.values();
    all.find(|component| component.name == name).expect(name)
}

#[test]
fn linked_crates_are_required_those_of_the_build_excluded_and_those_of_tests_absent() {
    let metadata = r#"{
        "packages": [
            {"id": "p", "name": "prog", "version": "1.0.0", "source": null, "license": "Apache-2.0"},
            {"id": "l", "name": "lib", "version": "1.2.0+x", "source": "registry", "license": "MIT/Apache-2.0"},
            {"id": "b", "name": "gen", "version": "2.0.0", "source": "registry", "license": null},
            {"id": "t", "name": "test", "version": "3.0.0", "source": "registry", "license": null}
        ],
        "resolve": {"nodes": [
            {"id": "p", "deps": [
                {"pkg": "l", "dep_kinds": [{"kind": null}]},
                {"pkg": "b", "dep_kinds": [{"kind": "build"}]},
                {"pkg": "t", "dep_kinds": [{"kind": "dev"}]}
            ]},
            {"id": "l", "deps": []}, {"id": "b", "deps": []}, {"id": "t", "deps": []}
        ]}
    }"#;
    let metadata: crates::Metadata = serde_json::from_str(metadata).unwrap();
    let checksums = [(("lib".to_owned(), "1.2.0+x".to_owned()), "abc".to_owned())].into();
    let mut parts = Parts::default();
    let programs = metadata.add(&["prog"], &checksums, &mut parts).unwrap();
    assert_eq!(programs, ["vmlet:prog@1.0.0"]);
    let library = component(&parts, "lib");
    assert_eq!(library.purl.as_deref(), Some("pkg:cargo/lib@1.2.0%2Bx"));
    assert_eq!(library.licenses[0].expression, "MIT OR Apache-2.0");
    assert_eq!(library.hashes[0].content, "abc");
    assert_eq!(library.scope, None);
    assert_eq!(component(&parts, "gen").scope, Some(Scope::Excluded));
    assert_eq!(parts.components.len(), 3, "{:?}", parts.components);
    let needs: Vec<_> = parts.needs["vmlet:prog@1.0.0"].iter().collect();
    assert_eq!(needs, ["pkg:cargo/gen@2.0.0", "pkg:cargo/lib@1.2.0%2Bx"]);
    assert!(metadata.add(&["none"], &checksums, &mut parts).is_err());
}

#[test]
fn every_crate_of_our_programs_has_a_licence_and_those_of_others_a_digest() {
    let mut parts = Parts::default();
    let programs = crates::add(&mut parts).unwrap();
    assert_eq!(programs.len(), 10, "{programs:?}");
    for component in parts.components.values() {
        assert_eq!(component.licenses.len(), 1, "{component:?}");
        let is_ours = component.purl.is_none();
        assert_eq!(component.hashes.is_empty(), is_ours, "{component:?}");
    }
    assert_eq!(component(&parts, "tokio").scope, None);
    assert_eq!(component(&parts, "protox").scope, Some(Scope::Excluded));
    assert!(!parts.components.values().any(|found| found.name == "insta"));
    // A release is built with this feature.
    component(&parts, "opentelemetry");
    for needs in parts.needs.values().flatten() {
        assert!(parts.components.contains_key(needs), "{needs}");
    }
}
