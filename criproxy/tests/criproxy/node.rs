//! What kubelet learns about the node.
//!
//! Invariant: the primary decides; a secondary only adds.
//! Failure: the assertion shows the answer.

use std::time::Duration;

use cri_proto::v1;
use tonic::Code;

use crate::environment::{Cri, TestEnvironment, eventually};

async fn status(cri: &mut Cri, verbose: bool) -> v1::StatusResponse {
    let request = v1::StatusRequest { verbose };
    cri.runtime.status(request).await.unwrap().into_inner()
}

fn conditions(status: &v1::StatusResponse) -> Vec<(&str, bool, &str)> {
    let conditions = &status.status.as_ref().unwrap().conditions;
    (conditions.iter())
        .map(|c| (c.r#type.as_str(), c.status, c.reason.as_str()))
        .collect()
}

#[tokio::test]
async fn version_is_the_primarys() {
    let (_env, mut cri) = TestEnvironment::start().await;
    let version = cri
        .runtime
        .version(v1::VersionRequest::default())
        .await
        .unwrap();
    assert_eq!(version.into_inner().runtime_name, "containerd");
}

#[tokio::test]
async fn status_has_the_secondarys_conditions_and_handlers_under_its_own_names() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let handlers = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    env.primary
        .with(|s| s.handlers = handlers(&["", "runc", "vmlet"]));
    env.secondary
        .with(|s| s.handlers = handlers(&["", "runc", "vmlet", "extra"]));
    let reported = status(&mut cri, true).await;
    assert_eq!(
        conditions(&reported),
        [
            ("RuntimeReady", true, ""),
            ("NetworkReady", true, ""),
            ("VmletRuntimeReady", true, ""),
            ("VmletNetworkReady", true, ""),
        ]
    );
    let names = |reported: &v1::StatusResponse| -> Vec<String> {
        reported
            .runtime_handlers
            .iter()
            .map(|h| h.name.clone())
            .collect()
    };
    assert_eq!(names(&reported), ["", "runc", "vmlet", "extra"]);
    let info: Vec<_> = reported.info.iter().collect();
    assert_eq!(info.len(), 3, "{info:?}");
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(reported.info["vmlet-criproxy/version"], own);
    assert_eq!(reported.info["config"], "containerd");
    assert_eq!(reported.info["vmlet/config"], "vmlet");

    env.secondary.kill();
    let reported = status(&mut cri, false).await;
    let all = conditions(&reported);
    assert_eq!(
        all[..2],
        [("RuntimeReady", true, ""), ("NetworkReady", true, "")]
    );
    assert_eq!(all[2], ("VmletRuntimeReady", false, "Unavailable"));
    assert_eq!(names(&reported), ["", "runc", "vmlet", "extra"]);
}

#[tokio::test]
async fn image_file_systems_are_the_primarys_first() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let mountpoints = |info: v1::ImageFsInfoResponse| -> Vec<String> {
        let all = info
            .image_filesystems
            .into_iter()
            .chain(info.container_filesystems);
        all.map(|usage| usage.fs_id.unwrap().mountpoint).collect()
    };
    let request = v1::ImageFsInfoRequest::default();
    let info = cri
        .images
        .image_fs_info(request)
        .await
        .unwrap()
        .into_inner();
    let want = ["/containerd", "/vmlet", "/containerd", "/vmlet"];
    assert_eq!(mountpoints(info), want);
    env.secondary.kill();
    let info = cri
        .images
        .image_fs_info(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(mountpoints(info), ["/containerd", "/containerd"]);
}

#[tokio::test]
async fn a_runtime_configuration_reaches_all_also_one_that_comes_later() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    env.secondary.kill();
    let request = v1::UpdateRuntimeConfigRequest::default();
    cri.runtime.update_runtime_config(request).await.unwrap();
    assert!(env.primary.was_called("UpdateRuntimeConfig"));
    assert!(!env.secondary.was_called("UpdateRuntimeConfig"));
    env.secondary.start();
    eventually("the update to be repeated", async || {
        env.secondary.was_called("UpdateRuntimeConfig")
    })
    .await;
}

#[tokio::test]
async fn version_waits_for_the_primarys_first_answer_and_not_for_a_secondary() {
    let mut env = TestEnvironment::new();
    env.primary.kill();
    env.secondary.kill();
    let mut cri = env.start_proxy().await;
    let mut waiting = cri.runtime.clone();
    let version = tokio::spawn(async move { waiting.version(v1::VersionRequest::default()).await });
    let mut request = tonic::Request::new(v1::VersionRequest::default());
    request.set_timeout(Duration::from_millis(200));
    let error = cri.runtime.version(request).await.unwrap_err();
    // The client's own clock may be first.
    let codes = [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled];
    assert!(codes.contains(&error.code()), "{error}");
    env.primary.start();
    let version = version.await.unwrap().unwrap().into_inner();
    assert_eq!(version.runtime_name, "containerd");
    // From now on, a primary that is away is an error at once.
    env.primary.kill();
    let error = cri
        .runtime
        .version(v1::VersionRequest::default())
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
}
