//! Settings of the cluster in a daemon that runs, and in the next one on the same state.
//!
//! Invariant: a web server on loopback has the images; hypervisor and network are away. A daemon ends
//! as by `kill -9`: with its runtime.
//! Failure: the pull that succeeds or fails, and should not.

use std::future::Future;
use std::path::Path;

use tokio::runtime::Runtime;

use super::methods::alone_in;
use crate::app::App;
use crate::config::RawData;
use crate::images::Error;
use crate::node_settings::{Given, Request};
use crate::testkit::Node;

/// Runs a daemon as long as the work takes.
fn with_daemon<T, F: Future<Output = T>>(state: &Path, work: impl FnOnce(App) -> F) -> T {
    let mut config = alone_in(state);
    config.images.allowed_addresses = vec!["127.0.0.1".to_owned().try_into().unwrap()];
    config.images.raw_data = RawData::Allow;
    config.images.reserve = "1".parse().unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async { work(App::start(&config).await.unwrap()).await })
}

async fn set(app: &App, settings: &[(&str, &str)]) {
    let given = |value: &str| Given {
        value: value.to_owned(),
        from: "a".to_owned(),
    };
    let settings = settings.iter();
    let request = Request {
        settings: settings.map(|(k, v)| ((*k).to_owned(), given(v))).collect(),
        kept: crate::node_settings::Kept::None,
    };
    let answer = app.node_services().settings.replace(request).await.unwrap();
    let all = answer.outcomes.values();
    let in_use = crate::node_settings::Outcome::InUse;
    assert!(all.clone().all(|outcome| *outcome == in_use), "{answer:?}");
}

#[test]
fn settings_of_the_cluster_count_for_the_next_pull_and_after_a_restart() {
    let web = Runtime::new().unwrap();
    let node = web.block_on(Node::new());
    let [first, second] = ["disk", "other"].map(|name| node.image(name));
    let state = tempfile::tempdir().unwrap();
    let http = ("images.protocol", "http");
    let tiny = ("images.max_download", "1Ki");
    let is_too_large = |error: &Error| matches!(error, Error::TooLarge { limit: 1024, .. });
    with_daemon(state.path(), async |app| {
        assert!(app.images.pull(&first).await.is_err(), "no TLS there");
        set(&app, &[http]).await;
        app.images.pull(&first).await.unwrap();
        set(&app, &[http, tiny]).await;
        let error = app.images.pull(&second).await.unwrap_err();
        assert!(is_too_large(&error), "{error:?}");
    });
    with_daemon(state.path(), async |app| {
        let error = app.images.pull(&second).await.unwrap_err();
        assert!(is_too_large(&error), "{error:?}");
        set(&app, &[http]).await;
        app.images.pull(&second).await.unwrap();
        set(&app, &[]).await;
        assert!(app.images.pull(&first).await.is_err(), "no TLS there");
    });
}
