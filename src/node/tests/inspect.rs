//! Looks at images, and images that are given by a URL.
//!
//! Invariant: what was found out is there as soon as the task has ended, and after a restart.
//! Failure: as of the other tests of tasks.

use podspec::url_image_name;

use super::*;
use crate::images::{Format, Inspected};
use crate::node::wire;

fn inspect(image: String) -> Work {
    Work::InspectImage {
        image,
        url: None,
        tls_secret: None,
        checksum_url: None,
    }
}

#[tokio::test]
async fn a_look_at_an_image_ends_with_what_it_is() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let wanted = inspect(node.image("disk"));
    agenda.submit(uid(1), uid(9), wanted).await.unwrap();
    let done = ended(&agenda, uid(1)).await;
    assert_eq!((done.state, done.percent), (State::Success, 100));
    let expected = Inspected {
        format: Some(Format::Raw),
        virtual_bytes: 4096,
        file_bytes: 4096,
        bootable: false,
        firmware: None,
        digest: None,
    };
    assert_eq!(done.image, Some(expected));
    let restarted = super::agenda(&node).await;
    assert_eq!(restarted.all(), std::slice::from_ref(&done));
    let reported = wire::status(&done).image.unwrap();
    assert_eq!(reported.format, "raw");
    assert_eq!((reported.virtual_bytes, reported.file_bytes), (4096, 4096));
}

#[tokio::test]
async fn a_query_of_a_missing_object_reports_the_reason() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let absent = inspect(node.image("absent"));
    agenda.submit(uid(1), uid(9), absent).await.unwrap();
    let done = ended(&agenda, uid(1)).await;
    assert_eq!((done.state, done.image), (State::Error, None));
    let failure = done.failure.clone().unwrap();
    let words = format!("not found: {} answered 404", node.image("absent"));
    assert!(failure.message.starts_with(&words), "{failure:?}");
    assert!(!failure.transient);
}

#[tokio::test]
async fn an_image_with_a_url_is_inspected_and_provisioned() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let url = format!("http://{}", node.image("other"));
    let image = url_image_name(&url);
    let look = Work::InspectImage {
        image: image.clone(),
        url: Some(url.clone()),
        tls_secret: None,
        checksum_url: None,
    };
    let make = Work::Provision {
        image: image.clone(),
        url: Some(url),
        size: 0,
        linked: true,
        name: String::new(),
        tls_secret: None,
    };
    for (task, work) in [(1, look), (2, make)] {
        agenda.submit(uid(task), uid(9), work).await.unwrap();
        let done = ended(&agenda, uid(task)).await;
        assert_eq!(done.state, State::Success, "{done:?}");
    }
    assert_eq!(node.disks.get(uid(9)).unwrap().image, image);
}

#[tokio::test]
async fn few_observations_run_concurrently() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    for n in 1..=6 {
        let wanted = inspect(node.image("disk"));
        agenda.submit(uid(n), uid(n), wanted).await.unwrap();
    }
    let chosen: Vec<_> = agenda.next().iter().map(|task| task.uid).collect();
    assert_eq!(chosen, [1, 2, 3, 4].map(uid));
}

#[tokio::test]
async fn a_task_of_an_older_version_has_no_url_and_no_image() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let wanted = provision(&node, "disk");
    let task = agenda.submit(uid(1), uid(9), wanted).await.unwrap();
    let mut old = serde_json::to_value(&*task).unwrap();
    let mut forget = |part: &str, key| {
        let part = old.pointer_mut(part).unwrap().as_object_mut().unwrap();
        part.remove(key).expect("it is there");
    };
    forget("/work", "url");
    forget("", "image");
    assert_eq!(serde_json::from_value::<Task>(old).unwrap(), *task);
}
