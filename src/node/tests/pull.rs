//! Pulls of images that no machine of the node needs yet.
//!
//! Invariant: the image is in the store when the task has succeeded, and nothing keeps it there.
//! Failure: as of the other tests of tasks.

use podspec::{Content, url_image_name};
use rstest::rstest;

use super::*;

fn pull(image: String) -> Work {
    Work::PullImage {
        image,
        url: None,
        tls_secret: None,
    }
}

#[tokio::test]
async fn a_pull_brings_an_image_that_nothing_keeps_and_sends_nothing_for_one_that_is_present() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let name = node.image("disk");
    node.images.remove(&name).await.unwrap();
    let before = node.requests();
    for task in [1, 2] {
        let wanted = pull(name.clone());
        agenda.submit(uid(task), uid(9), wanted).await.unwrap();
        let done = ended(&agenda, uid(task)).await;
        assert_eq!((done.state, done.percent), (State::Success, 100));
        assert!(node.images.find(&name).is_some());
        assert_eq!(node.requests(), before + 1, "after task {task}");
    }
    assert!(node.images.owners().is_empty());
}

#[tokio::test]
async fn an_image_is_pulled_by_its_url_for_the_machine_that_comes_later() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let url = format!("http://{}", node.image("other"));
    let image = url_image_name(&url);
    let wanted = Work::PullImage {
        image: image.clone(),
        url: Some(url.clone()),
        tls_secret: None,
    };
    agenda.submit(uid(1), uid(9), wanted).await.unwrap();
    assert_eq!(ended(&agenda, uid(1)).await.state, State::Success);
    let before = node.requests();
    let make = Work::Provision {
        image,
        url: Some(url),
        size: 0,
        linked: true,
        name: String::new(),
        tls_secret: None,
    };
    agenda.submit(uid(2), uid(8), make).await.unwrap();
    assert_eq!(ended(&agenda, uid(2)).await.state, State::Success);
    assert_eq!(node.requests(), before);
}

#[rstest]
#[case::of_an_earlier_version("DELETE FROM image_access", 0)]
#[case::by_other_certificates("UPDATE image_access SET identity = printf('%064d', 0)", 1)]
#[tokio::test]
async fn the_server_of_an_image_that_came_by_other_certificates_is_asked_before_a_disk_is_made(
    #[case] statement: &'static str,
    #[case] requests: usize,
) {
    let node = Node::new().await;
    let url = format!("http://{}", node.image("other"));
    let image = url_image_name(&url);
    let locator = crate::images::Locator::new(&image, Some(&url));
    node.images.pull(locator).await.unwrap();
    let changed = node.db.write(move |t| t.execute(statement, [])).await;
    assert!(changed.unwrap() > 0);
    let node = node.restarted().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let before = node.requests();
    let make = Work::Provision {
        image,
        url: Some(url),
        size: 0,
        linked: true,
        name: String::new(),
        tls_secret: None,
    };
    agenda.submit(uid(1), uid(8), make).await.unwrap();
    let done = ended(&agenda, uid(1)).await;
    assert_eq!(done.state, State::Success, "{done:?}");
    assert_eq!(node.requests(), before + requests);
}

#[tokio::test]
async fn a_pull_that_fails_reports_the_reason() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let absent = pull(node.image("absent"));
    agenda.submit(uid(1), uid(9), absent).await.unwrap();
    let done = ended(&agenda, uid(1)).await;
    let failure = done.failure.clone().unwrap();
    let words = format!("not found: {} answered 404", node.image("absent"));
    assert_eq!(done.state, State::Error);
    assert!(failure.message.starts_with(&words), "{failure:?}");
    assert!(!failure.transient);
}

#[tokio::test]
async fn a_pull_reports_percents_and_ends_when_it_is_cancelled() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let wanted = pull(node.image("half"));
    agenda.submit(uid(1), uid(9), wanted).await.unwrap();
    let mut changes = agenda.changes();
    let is_half = || agenda.all().iter().any(|task| task.percent == 50);
    let reported = async {
        while !is_half() {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, reported)
        .await
        .expect("the server sent one half");
    assert_eq!(node.images.pulls().len(), 1);
    agenda.cancel(uid(1)).await.unwrap();
    assert_eq!(ended(&agenda, uid(1)).await.state, State::Cancelled);
    assert!(node.images.pulls().is_empty());
}

#[tokio::test]
async fn two_images_are_pulled_at_once() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    for n in 1..=3 {
        let wanted = pull(node.image("half"));
        agenda.submit(uid(n), uid(n), wanted).await.unwrap();
    }
    let chosen: Vec<_> = agenda.next().iter().map(|task| task.uid).collect();
    assert_eq!(chosen, [1, 2].map(uid));
}

/// The task waits for the Secret: why there is none, or what is wrong with it, is in its message.
#[tokio::test]
async fn a_pull_with_certificates_requests_their_secret_for_its_task() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let url = "https://127.0.0.1:9/disk";
    let secret = |pem: &str| Content([("ca.crt".to_owned(), pem.as_bytes().to_vec())].into());
    let sources = Arc::clone(node.containers.sources());
    for (task, answer, words) in [
        (
            1,
            Err("it does not exist: create it".to_owned()),
            "secret images-tls: it does not exist: create it",
        ),
        (2, Ok(secret("hush")), "ca.crt has no certificate in PEM"),
    ] {
        let wanted = Work::PullImage {
            image: url_image_name(url),
            url: Some(url.to_owned()),
            tls_secret: Some("images-tls".to_owned()),
        };
        agenda.submit(uid(task), uid(9), wanted).await.unwrap();
        let mut changes = sources.changes();
        let requested = async {
            loop {
                if let Some((id, wanted)) = sources.wanted().pop_first() {
                    return (id, wanted);
                }
                changes.changed().await.unwrap();
            }
        };
        let (id, wanted) = tokio::time::timeout(TIMEOUT, requested).await.unwrap();
        assert_eq!(
            (wanted.task, wanted.pod_uid),
            (uid(task).to_string(), String::new())
        );
        sources.answer(id, answer);
        let done = ended(&agenda, uid(task)).await;
        let failure = done.failure.clone().unwrap();
        assert!(failure.message.contains(words), "{failure:?}");
        assert!(failure.transient && !failure.message.contains("hush"));
    }
}
