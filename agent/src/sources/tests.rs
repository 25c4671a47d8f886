//! Which pods get what they name.
//!
//! Invariant: no API server is called; what it does is in the tests of a cluster.
//! Failure: a message with the verdict.

use rstest::rstest;
use serde_json::json;

use super::*;

fn pod(uid: &str, node: &str, annotations: &[(&str, &str)]) -> Pod {
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    let pod = json!({
        "metadata": { "name": "web", "uid": uid, "annotations": annotations },
        "spec": { "nodeName": node, "containers": [] },
    });
    serde_json::from_value(pod).unwrap()
}

const NAMES: (&str, &str) = ("vmlet.dev/ssh-keys-source", "secret/keys");

#[rstest]
#[case::named("u", "n", &[NAMES], None)]
#[case::by_the_predecessors_name("u", "n", &[("VirtletCloudInitUserDataSource", "secret/keys")], None)]
#[case::static_pod("mirror", "n", &[NAMES, (CONFIG_HASH, "u")], None)]
#[case::another_pod("v", "n", &[NAMES], Some("another pod"))]
#[case::elsewhere("u", "m", &[NAMES], Some("not on this node"))]
#[case::not_named("u", "n", &[("vmlet.dev/ssh-keys", "k")], Some("does not name it"))]
#[case::another_kind("u", "n", &[("vmlet.dev/ssh-keys-source", "configmap/keys")], Some("does not name it"))]
#[case::nonsense("u", "n", &[("vmlet.dev/ssh-keys-source", "keys")], Some("is needed"))]
fn an_object_is_read_only_for_a_pod_of_this_node_that_names_it(
    #[case] uid: &str,
    #[case] node: &str,
    #[case] annotations: &[(&str, &str)],
    #[case] refused: Option<&str>,
) {
    let wanted = WantedSource {
        pod_uid: "u".to_owned(),
        ..WantedSource::default()
    };
    let source = Source::new(SourceKind::Secret, "keys").unwrap();
    let verdict = check(&pod(uid, node, annotations), "n", &wanted, &source);
    match refused {
        None => assert_eq!(verdict, Ok(())),
        Some(words) => assert!(verdict.as_ref().unwrap_err().contains(words), "{verdict:?}"),
    }
}
