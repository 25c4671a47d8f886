//! Hints of pods and images.
//!
//! Invariant: the rows are those of docs/criproxy.md.
//! Failure: the test names the row.

use rstest::rstest;

use super::*;

const VM: BackendIndex = BackendIndex(1);

fn routes() -> Routes {
    let text = r#"
        [primary]
        name = "containerd"
        socket = "/p"
        [[secondary]]
        name = "vmlet"
        socket = "/s"
        handlers = ["vmlet"]
        target_runtimes = ["vmlet", "virtlet.cloud"]
        image_prefixes = ["vmlet.dev/", "virtlet.cloud/"]
        [[secondary]]
        name = "other"
        socket = "/o"
        handlers = ["other"]
        image_prefixes = ["vmlet.dev/other/"]
    "#;
    Routes::new(&toml::from_str(text).unwrap())
}

fn config(target: &str) -> SandboxConfig {
    let annotations = match target {
        "" => BTreeMap::new(),
        target => BTreeMap::from([(TARGET.into(), target.into())]),
    };
    SandboxConfig {
        metadata: None,
        annotations,
    }
}

#[rstest]
#[case::nothing("", "", PRIMARY, false)]
#[case::handler("vmlet", "", VM, false)]
#[case::unknown_handler("runc", "", PRIMARY, false)]
#[case::annotation("", "virtlet.cloud", VM, false)]
#[case::both("vmlet", "virtlet.cloud", VM, false)]
#[case::primary_by_name("", "containerd", PRIMARY, false)]
#[case::annotation_beside_another_handler("runc", "vmlet", VM, true)]
#[case::name_beside_its_handler("other", "other", BackendIndex(2), false)]
fn a_sandbox_goes_where_its_hints_say(
    #[case] handler: &str,
    #[case] target: &str,
    #[case] backend: BackendIndex,
    #[case] blank_handler: bool,
) {
    let choice = routes().sandbox(handler, Some(&config(target)));
    let want = Choice {
        backend,
        blank_handler,
    };
    assert_eq!(choice, Ok(want));
}

#[test]
fn a_contradiction_and_an_unknown_value_are_errors() {
    for (handler, target) in [("vmlet", "containerd"), ("vmlet", "other")] {
        let choice = routes().sandbox(handler, Some(&config(target)));
        assert!(matches!(choice, Err(Unclear::Contradiction { .. })));
    }
    let choice = routes().sandbox("", Some(&config("docker")));
    assert_eq!(choice, Err(Unclear::UnknownTarget("docker".into())));
}

/// As a new installation has it.
#[rstest]
#[case::name("vmlet")]
#[case::virtlet("virtlet.cloud")]
fn what_no_list_has_agrees_with_a_handler_alone(#[case] target: &str) {
    let text = include_str!("../../../deploy/systemd/criproxy.toml");
    let routes = Routes::new(&toml::from_str(text).unwrap());
    let pod = config(target);
    let choice = |handler| routes.sandbox(handler, Some(&pod));
    let expected = Choice {
        backend: VM,
        blank_handler: false,
    };
    assert_eq!(choice("vmlet"), Ok(expected));
    assert_eq!(choice(""), Err(Unclear::ClassRequired(target.into())));
    assert_eq!(routes.annotated(&pod), Ok(Some(VM)));
}

#[rstest]
#[case::no_class("")]
#[case::another_class("runc")]
fn a_value_that_is_not_listed_selects_no_runtime_for_a_pod(#[case] handler: &str) {
    let choice = routes().sandbox(handler, Some(&config("other")));
    assert_eq!(choice, Err(Unclear::ClassRequired("other".into())));
}

#[rstest]
#[case::nothing("debian", "", "", None)]
#[case::handler("debian", "vmlet", "", Some(VM))]
#[case::annotation("debian", "", "vmlet", Some(VM))]
#[case::prefix("virtlet.cloud/debian", "", "", Some(VM))]
#[case::longest_prefix("vmlet.dev/other/x", "", "", Some(BackendIndex(2)))]
#[case::name_that_is_not_listed("debian", "", "other", Some(BackendIndex(2)))]
#[case::annotation_before_prefix("vmlet.dev/debian", "", "containerd", Some(PRIMARY))]
fn an_image_goes_where_its_hints_say(
    #[case] name: &str,
    #[case] handler: &str,
    #[case] target: &str,
    #[case] want: Option<BackendIndex>,
) {
    let image = Image {
        name: name.into(),
        annotations: config(target).annotations,
        runtime_handler: handler.into(),
    };
    assert_eq!(routes().image(&image), Ok(want));
}
