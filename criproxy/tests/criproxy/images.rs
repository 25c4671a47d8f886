//! Whose an image is.
//!
//! Invariant: each test is a row of the table of image hints.
//! Failure: the assertion shows which runtime was called.

use cri_proto::v1;
use rstest::rstest;
use tonic::Code;

use crate::environment::{Cri, TestEnvironment, sandbox_config};

fn spec(name: &str) -> v1::ImageSpec {
    v1::ImageSpec {
        image: name.into(),
        ..Default::default()
    }
}

async fn status(cri: &mut Cri, image: v1::ImageSpec) -> Result<Option<String>, tonic::Status> {
    let request = v1::ImageStatusRequest {
        image: Some(image),
        verbose: false,
    };
    let answer = cri.images.image_status(request).await?;
    Ok(answer.into_inner().image.map(|image| image.id))
}

async fn remove(cri: &mut Cri, name: &str) -> Result<(), tonic::Status> {
    let image = Some(spec(name));
    let request = v1::RemoveImageRequest { image };
    cri.images.remove_image(request).await.map(|_| ())
}

#[rstest]
#[case::nothing("debian", "", "", false)]
#[case::handler("debian", "vmlet", "", true)]
#[case::annotation("debian", "", "virtlet.cloud", true)]
#[case::prefix("vmlet.dev/debian", "", "", true)]
#[tokio::test]
async fn an_image_is_pulled_by_the_runtime_that_its_hints_select(
    #[case] name: &str,
    #[case] handler: &str,
    #[case] target: &str,
    #[case] secondary: bool,
) {
    let (env, mut cri) = TestEnvironment::start().await;
    let mut image = spec(name);
    image.runtime_handler = handler.into();
    if !target.is_empty() {
        let key = "kubernetes.io/target-runtime".to_owned();
        image.annotations.insert(key, target.into());
    }
    let request = v1::PullImageRequest {
        image: Some(image),
        ..Default::default()
    };
    cri.images.pull_image(request).await.unwrap();
    assert_eq!(env.secondary.was_called("PullImage"), secondary);
    assert_eq!(env.primary.was_called("PullImage"), !secondary);
}

#[tokio::test]
async fn the_image_of_a_pod_is_pulled_where_its_sandbox_runs() {
    let (env, mut cri) = TestEnvironment::start().await;
    cri.run("vmlet", "").await.unwrap();
    for (uid, secondary) in [("uid", true), ("stranger", false)] {
        env.secondary.calls();
        let request = v1::PullImageRequest {
            image: Some(spec("debian")),
            sandbox_config: Some(sandbox_config(uid)),
            ..Default::default()
        };
        cri.images.pull_image(request).await.unwrap();
        assert_eq!(env.secondary.was_called("PullImage"), secondary, "{uid}");
    }
}

#[tokio::test]
async fn the_image_of_a_pod_is_pulled_where_its_annotation_selects() {
    let (env, mut cri) = TestEnvironment::start().await;
    let mut config = sandbox_config("stranger");
    let key = "kubernetes.io/target-runtime".to_owned();
    config.annotations.insert(key, "virtlet.cloud".to_owned());
    let request = v1::PullImageRequest {
        image: Some(spec("debian")),
        sandbox_config: Some(config),
        ..Default::default()
    };
    cri.images.pull_image(request).await.unwrap();
    assert!(env.secondary.was_called("PullImage"));
    assert!(!env.primary.was_called("PullImage"));
}

#[tokio::test]
async fn without_a_hint_the_primary_is_queried_for_an_image_first() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    env.primary.add_image("p", "both");
    env.secondary.add_image("s", "both");
    env.secondary.add_image("t", "vm-only");
    assert_eq!(
        status(&mut cri, spec("both")).await.unwrap().as_deref(),
        Some("p")
    );
    assert_eq!(
        status(&mut cri, spec("vm-only")).await.unwrap().as_deref(),
        Some("t")
    );
    assert_eq!(status(&mut cri, spec("nowhere")).await.unwrap(), None);
    // An ordinary pod's image does not need the secondary.
    env.secondary.kill();
    assert_eq!(status(&mut cri, spec("nowhere")).await.unwrap(), None);
    let error = status(&mut cri, spec("vmlet.dev/x")).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
}

#[tokio::test]
async fn an_image_is_removed_wherever_it_is() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let id = |digit: &str| format!("sha256:{}", digit.repeat(64));
    env.secondary.add_image(&id("a"), "a");
    env.primary.add_image(&id("b"), "b");
    env.secondary.add_image(&id("b"), "b");
    cri.images
        .list_images(v1::ListImagesRequest::default())
        .await
        .unwrap();
    remove(&mut cri, &id("a")).await.unwrap();
    assert!(!env.primary.was_called("RemoveImage"));
    remove(&mut cri, &id("b")).await.unwrap();
    assert!(env.primary.with(|s| s.images.is_empty()));
    assert!(env.secondary.with(|s| s.images.is_empty()));

    env.secondary.add_image(&id("c"), "c");
    cri.images
        .list_images(v1::ListImagesRequest::default())
        .await
        .unwrap();
    env.secondary.kill();
    for image in ["c", "d"] {
        let error = remove(&mut cri, &id(image)).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{image}");
    }
}

#[tokio::test]
async fn contradicting_hints_of_an_image_are_an_invalid_argument() {
    let (_env, mut cri) = TestEnvironment::start().await;
    let mut image = spec("debian");
    let key = "kubernetes.io/target-runtime".to_owned();
    image.annotations.insert(key, "docker".into());
    let error = status(&mut cri, image).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}
