//! Which rule wins, and what it makes of a name.
//!
//! Invariant: exact before prefix, longer before shorter, prefix before expression.
//! Failure: rules that cannot work are refused at once.

use rstest::rstest;

use super::super::reference::Reference;
use super::super::settings::Pattern;
use super::*;

fn rules() -> Vec<Translation> {
    let exact = |name: &str| Pattern::Exact(name.into());
    let prefix = |name: &str| Pattern::Prefix(name.into());
    let rule = |pattern, url: &str| Translation {
        pattern,
        url: url.into(),
    };
    vec![
        rule(prefix("corp"), "http://mirror.corp/all"),
        rule(prefix("corp/linux/"), "mirror.corp/linux/"),
        rule(
            exact("debian"),
            "https://me:hush@cloud.debian.org/12.qcow2?k=hush",
        ),
        rule(
            exact("corp/linux/special"),
            "http://mirror.corp/special.img",
        ),
        rule(exact("vmlet.dev/debian"), "http://mirror.corp/routed.img"),
        rule(exact("vmlet.dev/only"), "http://mirror.corp/only.img"),
        rule(prefix("vmlet.dev/routed/"), "http://mirror.corp/r"),
        rule(prefix("twice"), "http://mirror.corp/plain"),
        rule(prefix("vmlet.dev/twice"), "http://mirror.corp/routed"),
    ]
}

fn name(text: &str) -> Name {
    match Reference::parse(text) {
        Ok(Reference::Named(name)) => name,
        other => panic!("{text}: {other:?}"),
    }
}

/// What a name is translated to on a node where `r.example` is a registry.
fn translate(translator: &Translator, text: &str) -> Result<Place> {
    translator.translate(&name(text), Origin::Default, |host| host == "r.example")
}

fn url_of(place: &Place) -> &str {
    match place {
        Place::File(source) => source.url().as_str(),
        Place::Registry(place) => panic!("{place}"),
    }
}

#[rstest]
#[case::exact("debian:12", "https://me:hush@cloud.debian.org/12.qcow2?k=hush")]
#[case::exact_beats_prefix("corp/linux/special", "http://mirror.corp/special.img")]
#[case::longest_prefix("corp/linux/a.img", "https://mirror.corp/linux/a.img")]
#[case::shorter_prefix("corp/bsd/a.img", "http://mirror.corp/all/bsd/a.img")]
#[case::routed_rule("vmlet.dev/debian", "http://mirror.corp/routed.img")]
#[case::rule_after_routing("virtlet.cloud/corp/x", "http://mirror.corp/all/x")]
#[case::routed_rule_without_routing("only", "http://mirror.corp/only.img")]
#[case::routed_rule_by_alias("virtlet.cloud/only", "http://mirror.corp/only.img")]
#[case::routed_prefix("vmlet.dev/routed/a", "http://mirror.corp/r/a")]
#[case::routed_prefix_without_routing("routed/a", "http://mirror.corp/r/a")]
#[case::routed_prefix_by_alias("virtlet.cloud/routed/a", "http://mirror.corp/r/a")]
#[case::prefix_as_spelled("vmlet.dev/twice/a", "http://mirror.corp/routed/a")]
#[case::prefix_as_spelled_bare("twice/a", "http://mirror.corp/plain/a")]
#[case::no_rule("h.org:81/a.img:t", "https://h.org:81/a.img")]
#[case::no_rule_after_routing("vmlet.dev/h.org/a", "https://h.org/a")]
#[case::localhost("localhost/a", "https://localhost/a")]
#[case::url("http://h.org/a.img", "http://h.org/a.img")]
fn names_become_urls(#[case] text: &str, #[case] url: &str) {
    let translator = Translator::new(Protocol::Https, &rules()).unwrap();
    let place = translate(&translator, text).unwrap();
    assert_eq!(url_of(&place), url);
}

#[rstest]
#[case::short("ubuntu")]
#[case::prefix_of_a_word("corporation/a")]
#[case::routed_short("vmlet.dev/ubuntu")]
fn a_name_that_is_nowhere_is_refused(#[case] text: &str) {
    let translator = Translator::new(Protocol::Https, &rules()).unwrap();
    let refused = translate(&translator, text);
    assert!(
        matches!(refused, Err(Error::InvalidName { .. })),
        "{refused:?}"
    );
}

#[rstest]
#[case::routed("vmlet.dev/a", Some("http://mirror.corp/all/a"))]
#[case::bare("a", Some("http://mirror.corp/all/a"))]
#[case::alias("virtlet.cloud/a", Some("http://mirror.corp/all/a"))]
#[case::location("h.org/a", Some("https://h.org/a"))]
#[case::url("http://h.org/a", Some("http://h.org/a"))]
fn a_rule_for_all_names_leaves_locations_alone(#[case] text: &str, #[case] url: Option<&str>) {
    let rule = Translation {
        pattern: Pattern::Prefix("vmlet.dev/".into()),
        url: "http://mirror.corp/all".into(),
    };
    let translator = Translator::new(Protocol::Https, &[rule]).unwrap();
    let place = translate(&translator, text).ok();
    assert_eq!(place.as_ref().map(url_of), url);
}

#[rstest]
#[case::no_rule("http://H.org:8080/A.img?k=hush#f", "http://h.org:8080/A.img?k=hush")]
#[case::exact("http://files.corp/a.img?v=1", "https://mirror.corp/exact")]
#[case::default_port("https://files.corp:443/a.img", "https://mirror.corp/exact")]
#[case::other_port("https://files.corp:444/a.img", "https://files.corp:444/a.img")]
#[case::prefix("https://files.corp/b/C.img?v=1", "http://mirror.corp/files/b/C.img")]
#[case::routed_rule("https://routed.corp/a", "http://mirror.corp/routed/a")]
#[case::no_name("https://files.corp/b/c%20d", "https://files.corp/b/c%20d")]
#[case::like_a_tag("https://files.corp/a.img:1", "https://files.corp/a.img:1")]
#[case::no_path("https://files.corp", "https://files.corp/")]
#[case::all_names("https://intranet/a", "https://intranet/a")]
fn a_url_is_known_by_host_and_path(#[case] url: &str, #[case] expected: &str) {
    let rule = |pattern, url: &str| Translation {
        pattern,
        url: url.into(),
    };
    let prefix = |name: &str| Pattern::Prefix(name.into());
    let exact = Pattern::Exact("files.corp/a.img".into());
    let rules = vec![
        rule(exact, "mirror.corp/exact"),
        rule(prefix("files.corp"), "http://mirror.corp/files"),
        rule(
            prefix("vmlet.dev/routed.corp/"),
            "http://mirror.corp/routed",
        ),
        rule(prefix("vmlet.dev/"), "http://mirror.corp/all"),
    ];
    let translator = Translator::new(Protocol::Https, &rules).unwrap();
    let name = name(&podspec::url_image_name(url));
    let origin = Origin::Url(Url::parse(url).unwrap());
    let place = translator.translate(&name, origin, |_| true).unwrap();
    assert_eq!(url_of(&place), expected);
}

#[rstest]
#[case::known_host("r.example/a/b:1", "r.example/a/b:1")]
#[case::routed("vmlet.dev/r.example/a", "r.example/a:latest")]
#[case::exact("short:2", "q.example/disks/short:2")]
#[case::exact_with_tag("fixed:2", "q.example/disks/fixed:9")]
#[case::prefix("all/x/y:3", "q.example/all/x/y:3")]
fn names_of_registries_become_places(#[case] text: &str, #[case] expected: &str) {
    let rule = |pattern, url: &str| Translation {
        pattern,
        url: url.into(),
    };
    let rules = vec![
        rule(
            Pattern::Exact("short".into()),
            "oci://q.example/disks/short",
        ),
        rule(
            Pattern::Exact("fixed".into()),
            "oci://q.example/disks/fixed:9",
        ),
        rule(Pattern::Prefix("all".into()), "oci://q.example/all"),
    ];
    let translator = Translator::new(Protocol::Https, &rules).unwrap();
    match translate(&translator, text).unwrap() {
        Place::Registry(place) => assert_eq!(place.to_string(), expected),
        Place::File(source) => panic!("{source:?}"),
    }
}

#[test]
fn a_pod_may_say_that_a_name_is_one_of_a_registry() {
    let translator = Translator::new(Protocol::Https, &rules()).unwrap();
    let of = |text: &str| translator.translate(&name(text), Origin::Registry, |_| false);
    assert!(matches!(
        of("h.org:81/a.img:t").unwrap(),
        Place::Registry(_)
    ));
    // The node's rules win, and what no registry can have is refused.
    assert!(matches!(of("debian").unwrap(), Place::File(_)));
    assert!(matches!(of("h.org/A"), Err(Error::InvalidName { .. })));
    for text in ["ubuntu", "vmlet.dev/ubuntu"] {
        match of(text).unwrap() {
            Place::Registry(place) => {
                assert_eq!(place.to_string(), "docker.io/library/ubuntu:latest");
            }
            Place::File(source) => panic!("{source:?}"),
        }
    }
}

#[rstest]
#[case::official("ubuntu:24.04", "docker.io/library/ubuntu:24.04")]
#[case::of_a_user("kubevirt/cirros:v1", "docker.io/kubevirt/cirros:v1")]
#[case::longer("a/b/c", "docker.io/a/b/c:latest")]
fn a_name_without_a_host_is_docker_hubs(#[case] text: &str, #[case] expected: &str) {
    let translator = Translator::new(Protocol::Https, &rules()).unwrap();
    let on = |translator: &Translator, text: &str| {
        translator.translate(&name(text), Origin::Default, |host| host == "docker.io")
    };
    match on(&translator, text).unwrap() {
        Place::Registry(place) => assert_eq!(place.to_string(), expected),
        Place::File(source) => panic!("{source:?}"),
    }
    // Rules come first, and a name for this runtime alone is one of its rules.
    assert!(matches!(on(&translator, "debian"), Ok(Place::File(_))));
    assert!(matches!(on(&translator, "corp/x"), Ok(Place::File(_))));
    let routed = on(&translator, "vmlet.dev/debain").unwrap_err().to_string();
    assert!(
        routed.contains("\"vmlet.dev/debain\": it names no server"),
        "{routed}"
    );
    assert!(routed.ends_with("did you mean debian?"), "{routed}");
    assert!(
        !routed.contains("hush") && !routed.contains("mirror"),
        "{routed}"
    );
    // Nor is a name looked for elsewhere whose rule may be in a file that is refused.
    let incomplete = translator.with([], true);
    let refused = on(&incomplete, text).unwrap_err().to_string();
    assert!(refused.contains("its log says why"), "{refused}");
}

/// `vmlet.dev/routed/` is the prefix of a rule: the name before the slash is not below it.
#[test]
fn a_name_that_is_the_prefix_of_a_rule_gets_the_reason() {
    let translator = Translator::new(Protocol::Https, &rules()).unwrap();
    let refused = translate(&translator, "vmlet.dev/routed").unwrap_err();
    let advice = "the rule with prefix = \"vmlet.dev/routed\" is for names below it, such as \
                  vmlet.dev/routed/NAME: write name = \"vmlet.dev/routed\" in a rule for this name";
    assert!(refused.to_string().ends_with(advice), "{refused}");
}

#[test]
fn a_source_shows_no_secrets() {
    let translator = Translator::new(Protocol::Https, &rules()).unwrap();
    let Place::File(source) = translate(&translator, "debian").unwrap() else {
        panic!("not a file");
    };
    assert_eq!(format!("{source:?}"), "cloud.debian.org/12.qcow2");
    assert_eq!(source.key().len(), 64);
    assert!(!format!("{translator:?}").contains("hush"));
}

#[rstest]
#[case::scheme(Pattern::Exact("a".into()), "file:///etc/passwd")]
#[case::no_host(Pattern::Exact("a".into()), "http://")]
#[case::no_name(Pattern::Exact(String::new()), "http://h.org/a")]
#[case::query(Pattern::Prefix("a".into()), "http://h.org/?file=")]
#[case::no_repository(Pattern::Exact("a".into()), "oci://r.example")]
#[case::registry_credentials(Pattern::Prefix("a".into()), "oci://me:hush@r.example/a")]
#[case::expression_scheme(Pattern::Expression("^(a)$".into()), "file:///$1")]
#[case::expression(Pattern::Expression("(a".into()), "http://h.org/a")]
#[case::look_around(Pattern::Expression("a(?=b)".into()), "http://h.org/a")]
#[case::back_reference(Pattern::Expression("(a)\\1".into()), "http://h.org/a")]
#[case::unicode_class(Pattern::Expression("\\p{Greek}".into()), "http://h.org/a")]
#[case::huge(Pattern::Expression("((a{100}){100}){100}".into()), "http://h.org/a")]
#[case::long(Pattern::Expression("a".repeat(1025)), "http://h.org/a")]
#[case::deep(Pattern::Expression(format!("{}a{}", "(".repeat(60), ")".repeat(60))), "http://h.org/a")]
#[case::no_group(Pattern::Expression("^(a)$".into()), "http://h.org/$2")]
#[case::glued_group(Pattern::Expression("^(a)$".into()), "http://h.org/$1x")]
#[case::no_named_group(Pattern::Expression("^(a)$".into()), "http://h.org/${name}")]
#[case::open_group(Pattern::Expression("^(a)$".into()), "http://h.org/${1")]
#[case::dollar(Pattern::Expression("^(a)$".into()), "http://h.org/a$/b")]
fn a_rule_that_cannot_work_is_refused(#[case] pattern: Pattern, #[case] url: &str) {
    let rule = Translation {
        pattern,
        url: url.into(),
    };
    let refused = Translator::new(Protocol::Https, &[rule]);
    assert!(
        matches!(refused, Err(Error::Translation { .. })),
        "{refused:?}"
    );
}

fn expressions(rules: &[(&str, &str)]) -> Translator {
    let rule = |(text, url): &(&str, &str)| Translation {
        pattern: Pattern::Expression((*text).into()),
        url: (*url).into(),
    };
    let mut all = rules_before();
    all.extend(rules.iter().map(rule));
    Translator::new(Protocol::Https, &all).unwrap()
}

/// An exact rule and a prefix, which beat every expression.
fn rules_before() -> Vec<Translation> {
    let rule = |pattern, url: &str| Translation {
        pattern,
        url: url.into(),
    };
    vec![
        rule(Pattern::Exact("debian/12".into()), "http://m.corp/exact"),
        rule(Pattern::Prefix("corp".into()), "http://m.corp/prefix"),
    ]
}

#[rstest]
#[case::groups("debian/11/amd64:x", "https://m.corp/amd64/debian-11.qcow2")]
#[case::routed("vmlet.dev/debian/11/amd64", "https://m.corp/amd64/debian-11.qcow2")]
#[case::alias(
    "virtlet.cloud/debian/11/amd64",
    "https://m.corp/amd64/debian-11.qcow2"
)]
#[case::exact_beats("debian/12", "http://m.corp/exact")]
#[case::prefix_beats("corp/debian/11/amd64", "http://m.corp/prefix/debian/11/amd64")]
#[case::first_in_order("ubuntu", "https://m.corp/first")]
#[case::named_group("suse-leap", "https://m.corp/leapfrog?v=$leap")]
#[case::absent_group("centos", "https://m.corp/centos")]
#[case::anywhere("my.org/an-arch-image", "https://m.corp/arch.img")]
#[case::location("files.org/a/b.img", "http://mirror.corp/files/a/b.img")]
#[case::registry_host("r.example/mapped/a", "http://mirror.corp/mapped-a")]
#[case::class_of_ascii("word_1", "https://m.corp/word_1")]
fn an_expression_makes_a_url_of_its_groups(#[case] text: &str, #[case] url: &str) {
    let translator = expressions(&[
        ("^debian/([0-9]+)/([a-z0-9]+)$", "m.corp/$2/debian-$1.qcow2"),
        ("^ubuntu$", "m.corp/first"),
        ("ubuntu", "m.corp/second"),
        ("^suse-(?P<kind>[a-z]+)$", "m.corp/${kind}frog?v=$$$kind"),
        ("^centos(-[0-9])?$", "m.corp/centos$1"),
        ("arch", "m.corp/arch.img"),
        (r"^files\.org/(.*)$", "http://mirror.corp/files/$1"),
        ("^r.example/mapped/(.)$", "http://mirror.corp/mapped-$1"),
        (r"^(\w+)$", "m.corp/$1"),
    ]);
    let place = translate(&translator, text).unwrap();
    assert_eq!(url_of(&place), url);
}

#[rstest]
#[case::anchors("xdebian/11/amd64")]
#[case::case_counts("Debian/11/amd64")]
fn an_expression_that_does_not_match_is_no_rule(#[case] text: &str) {
    let translator = expressions(&[("^debian/([0-9]+)/([a-z0-9]+)$", "m.corp/$1")]);
    let refused = translate(&translator, text);
    assert!(
        matches!(refused, Err(Error::InvalidName { .. })),
        "{refused:?}"
    );
}

#[test]
fn an_expression_may_lead_to_a_registry() {
    let translator = expressions(&[("^disks/(.+)$", "oci://q.example/disks/$1")]);
    match translate(&translator, "disks/a/b:3").unwrap() {
        Place::Registry(place) => assert_eq!(place.to_string(), "q.example/disks/a/b:3"),
        Place::File(source) => panic!("{source:?}"),
    }
}

#[test]
fn an_expression_is_not_for_images_that_have_a_url() {
    let translator = expressions(&[("debian", "http://mirror.corp/a")]);
    let text = "https://cloud.debian.org/a.img";
    let origin = Origin::Url(Url::parse(text).unwrap());
    let name_of_url = name(&podspec::url_image_name(text));
    let place = translator.translate(&name_of_url, origin, |_| false);
    assert_eq!(url_of(&place.unwrap()), text);
    assert_eq!(url_of(&translate(&translator, text).unwrap()), text);
}

#[test]
fn what_an_expression_makes_of_a_name_is_checked_as_any_url() {
    let translator = expressions(&[
        ("^host-(.*)$", "http://$1/a.img"),
        ("^port-(.*)$", "http://h:$1/a"),
    ]);
    for text in ["host-1.2.3.999", "port-x", "port-99999"] {
        let refused = translate(&translator, text);
        assert!(
            matches!(refused, Err(Error::InvalidName { .. })),
            "{text}: {refused:?}"
        );
    }
}
