//! Whose a call is.
//!
//! Invariant: each test is a row of the routing tables.
//! Failure: the assertion shows which runtime was called.

use cri_proto::v1;
use rstest::rstest;
use tonic::Code;

use crate::environment::{TAG, TestEnvironment};

#[rstest]
#[case::nothing("", "", false)]
#[case::handler("vmlet", "", true)]
#[case::other_handler("runc", "", false)]
#[case::annotation("", "vmlet", true)]
#[case::alias("", "virtlet.cloud", true)]
#[case::both("vmlet", "vmlet", true)]
#[case::primary_by_name("", "containerd", false)]
#[tokio::test]
async fn a_sandbox_runs_where_handler_or_annotation_select(
    #[case] handler: &str,
    #[case] target: &str,
    #[case] secondary: bool,
) {
    let (env, mut cri) = TestEnvironment::start().await;
    let id = cri.run(handler, target).await.unwrap();
    assert_eq!(id.ends_with(TAG), secondary);
    assert_eq!(env.secondary.was_called("RunPodSandbox"), secondary);
    assert_eq!(env.primary.was_called("RunPodSandbox"), !secondary);
}

#[rstest]
#[case::contradiction("vmlet", "containerd")]
#[case::unknown("", "docker")]
#[tokio::test]
async fn an_ambiguous_request_is_an_invalid_argument_and_reaches_no_runtime(
    #[case] handler: &str,
    #[case] target: &str,
) {
    let (env, mut cri) = TestEnvironment::start().await;
    let error = cri.run(handler, target).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(
        error.message().contains("kubernetes.io/target-runtime"),
        "{error}"
    );
    for fake in [&env.primary, &env.secondary] {
        assert!(!fake.was_called("RunPodSandbox"));
    }
}

#[tokio::test]
async fn a_handler_that_the_annotated_runtime_does_not_know_is_blanked() {
    let (env, mut cri) = TestEnvironment::start().await;
    cri.run("runc", "vmlet").await.unwrap();
    let run = env.secondary.with(|state| state.runs.remove(0));
    assert_eq!(run.runtime_handler, "");
    assert_eq!(run.config.unwrap().metadata.unwrap().uid, "uid");
}

#[tokio::test]
async fn containers_follow_their_sandbox_and_short_ids_do() {
    let (_env, mut cri) = TestEnvironment::start().await;
    for (handler, name) in [("", "containerd"), ("vmlet", "vmlet")] {
        let sandbox = cri.run(handler, "").await.unwrap();
        let container = cri.container(&sandbox).await.unwrap();
        assert_eq!(cri.exec(&container).await.unwrap(), name.as_bytes());
        assert_eq!(cri.exec(&container[..13]).await.unwrap(), name.as_bytes());
    }
}

#[tokio::test]
async fn an_unknown_object_is_looked_up_in_all_runtimes() {
    let (env, mut cri) = TestEnvironment::start().await;
    env.secondary.add_sandbox("cafe0000");
    cri.stop_sandbox("cafe").await.unwrap();
    assert!(env.secondary.was_called("StopPodSandbox"));
    assert!(!env.primary.was_called("StopPodSandbox"));
}

#[tokio::test]
async fn an_unknown_object_is_not_found_with_the_primarys_message() {
    let (_env, mut cri) = TestEnvironment::start().await;
    for id in ["unknown".to_owned(), "ab".repeat(32)] {
        let error = cri.container_status(&id).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert_eq!(error.message(), format!("no {id:?} here"));
    }
}

#[tokio::test]
async fn an_id_that_begins_objects_of_both_is_ambiguous() {
    let (env, mut cri) = TestEnvironment::start().await;
    env.primary.add_sandbox("aa11");
    env.secondary.add_sandbox("aa22");
    let error = cri.stop_sandbox("aa").await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_stop_of_an_unknown_object_goes_to_all_runtimes_and_succeeds() {
    let (env, mut cri) = TestEnvironment::start().await;
    cri.stop_sandbox("unknown").await.unwrap();
    assert!(env.primary.was_called("StopPodSandbox"));
    assert!(env.secondary.was_called("StopPodSandbox"));
}

#[tokio::test]
async fn a_stop_of_an_unknown_object_fails_while_a_possible_owner_is_unavailable() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    cri.run("vmlet", "").await.unwrap();
    cri.sandboxes().await.unwrap();
    env.secondary.kill();
    let error = cri.stop_sandbox("unknown").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    // Nothing of the secondary's looks like this.
    cri.stop_sandbox(&"ab".repeat(32)).await.unwrap();
}

#[tokio::test]
async fn a_removed_object_is_forgotten() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let id = cri.run("vmlet", "").await.unwrap();
    cri.sandboxes().await.unwrap();
    let request = v1::RemovePodSandboxRequest {
        pod_sandbox_id: id.clone(),
    };
    cri.runtime.remove_pod_sandbox(request).await.unwrap();
    env.secondary.kill();
    assert_eq!(cri.sandboxes().await.unwrap(), Vec::<String>::new());
}
