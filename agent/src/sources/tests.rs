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
#[case::certificates_of_the_image("u", "n", &[("vmlet.dev/image-tls-secret", "keys")], None)]
#[case::another_secret("u", "n", &[("vmlet.dev/image-tls-secret", "other")], Some("does not name it"))]
#[case::no_secret("u", "n", &[("vmlet.dev/image-tls-secret", "a/b")], Some("the name of a Secret"))]
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
        None => assert!(verdict.is_ok(), "{verdict:?}"),
        Some(words) => assert!(verdict.as_ref().unwrap_err().contains(words), "{verdict:?}"),
    }
}

#[test]
fn an_object_is_read_only_for_a_task_of_this_node_that_names_it() {
    let task = |uid: &str, secret: Option<&str>| -> VirtualMachineTask {
        serde_json::from_value(json!({
            "metadata": { "name": "t", "namespace": "images", "uid": uid },
            "spec": {
                "nodeName": "n", "vmName": "debian", "vmUID": "i", "kind": "PullImage",
                "imageTLSSecret": secret,
            },
        }))
        .unwrap()
    };
    let mut tasks = vec![
        task("t-1", Some("keys")),
        task("t-2", Some("other")),
        task("t-3", None),
    ];
    let verdict = |tasks: &[VirtualMachineTask], uid: &str, kind| {
        let wanted = WantedSource {
            task_uid: uid.to_owned(),
            ..WantedSource::default()
        };
        of_task(tasks, &wanted, &Source::new(kind, "keys").unwrap())
    };
    let of = |uid: &str| verdict(&tasks, uid, SourceKind::Secret);
    assert_eq!(of("t-1"), Ok("images".to_owned()));
    for uid in ["t-2", "t-3"] {
        assert!(of(uid).unwrap_err().contains("does not name it"));
    }
    assert!(of("t-4").unwrap_err().contains("does not exist"));
    let map = verdict(&tasks, "t-1", SourceKind::ConfigMap);
    assert!(map.unwrap_err().contains("does not name it"));
    // One for a machine of a namespace that is being deleted.
    tasks[0].spec.vm_namespace = Some("machines".to_owned());
    let of_machine = verdict(&tasks, "t-1", SourceKind::Secret);
    assert_eq!(of_machine, Ok("machines".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_question_gets_an_answer_in_time_although_others_wait_for_the_api_server() {
    let slots = Semaphore::new(1);
    let held = place(&slots).await.unwrap();
    let begin = tokio::time::Instant::now();
    let refused = place(&slots).await.unwrap_err();
    assert!(refused.contains("other objects"), "{refused}");
    assert_eq!(begin.elapsed(), PLACE);
    drop(held);
    assert!(place(&slots).await.is_ok());
}
