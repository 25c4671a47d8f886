//! Plugins that misbehave: each way has its own error, and takes bounded time.
//!
//! Invariant: a pipe that the plugin and all its children hold open closes when the last of them
//! has ended.
//! Failure: a process left behind keeps the pipe open, and the test ends at its deadline.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use cni::{Error, ErrorKind, Failure, InvokeError};
use nix::libc;
use rstest::rstest;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::scratch::{Scratch, WORKS, chain, network, parse};

const SOON: Duration = Duration::from_secs(60);

/// Starts a child, writes to the pipe that both run, and waits indefinitely.
const HANGS: &str = "exec 3>$HERE/pipe; sleep 1000 & echo started >&3; wait";

async fn failure(scratch: &Scratch, deadline: Duration) -> InvokeError {
    let runtime = scratch.runtime_within(deadline);
    let network = network("1.0.0", &["broken"]);
    match runtime.add(&network, &scratch.attachment("c1")).await {
        Err(Error::Plugin(error)) => *error,
        other => panic!("{other:?}"),
    }
}

fn pipe_in(path: &Path) -> pipe::Receiver {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    pipe::OpenOptions::new().open_receiver(path).unwrap()
}

async fn expect(pipe: &mut pipe::Receiver, text: &str) {
    let mut seen = vec![0; text.len()];
    timeout(SOON, pipe.read_exact(&mut seen))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(seen, text.as_bytes());
}

/// Waits until no process holds the other end.
async fn closed(pipe: &mut pipe::Receiver) {
    let mut rest = Vec::new();
    timeout(SOON, pipe.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
}

#[rstest]
#[case::silent("", |f: &Failure| matches!(f, Failure::NoOutput))]
#[case::blank("echo; echo ' '", |f: &Failure| matches!(f, Failure::NoOutput))]
#[case::garbage("echo not json", |f: &Failure| matches!(f, Failure::Garbage { words } if words == "not json"))]
#[case::binary("printf '\\377\\000\\033[2J'", |f: &Failure| matches!(f, Failure::Garbage { .. }))]
#[case::no_object("echo '[]'", |f: &Failure| matches!(f, Failure::Unusable(_)))]
#[case::wrong("echo '{\"ips\":7}'", |f: &Failure| matches!(f, Failure::Unusable(_)))]
#[case::crash("echo oops >&2; exit 3", |f: &Failure| matches!(f, Failure::Crashed { status, words } if status.code() == Some(3) && words == "oops"))]
#[case::killed("kill -9 $$", |f: &Failure| matches!(f, Failure::Crashed { .. }))]
#[case::reported("echo '{\"code\":11,\"msg\":\"busy\",\"details\":\"try later\"}'; exit 1", |f: &Failure| matches!(f, Failure::Reported { code: 11, message } if message == "busy: try later"))]
#[case::flood("yes | head -c 3000000", |f: &Failure| matches!(f, Failure::TooMuchOutput { .. }))]
#[case::noisy("yes | head -c 300000 >&2; exit 1", |f: &Failure| matches!(f, Failure::Crashed { words, .. } if words.len() < 2000))]
#[tokio::test]
async fn each_misbehaviour_is_a_failure_of_its_own(
    #[case] body: &str,
    #[case] is_it: fn(&Failure) -> bool,
) {
    let scratch = Scratch::new();
    scratch.plugin(
        "broken",
        &format!("[ $CNI_COMMAND = ADD ] || exit 0\n{body}"),
    );
    let error = failure(&scratch, SOON).await;
    assert!(is_it(&error.failure), "{error:?}");
    assert_eq!(error.to_string(), "CNI plugin broken of network net: ADD");
    assert!(scratch.cache().is_empty(), "undone and forgotten");
}

#[tokio::test]
async fn a_plugin_that_hangs_is_killed_with_its_children() {
    let scratch = Scratch::new();
    let mut pipe = pipe_in(&scratch.path("pipe"));
    scratch.plugin(
        "broken",
        &format!("[ $CNI_COMMAND = ADD ] || exit 0\n{HANGS}"),
    );
    // It has to be there before it is killed.
    let deadline = Duration::from_secs(6);
    let error = failure(&scratch, deadline).await;
    assert!(
        matches!(error.failure, Failure::TimedOut { .. }),
        "{error:?}"
    );
    assert_eq!(Error::Plugin(Box::new(error)).kind(), ErrorKind::Timeout);
    expect(&mut pipe, "started\n").await;
    closed(&mut pipe).await;
}

#[tokio::test]
async fn a_dropped_add_kills_its_plugin_and_leaves_something_to_delete() {
    let scratch = Scratch::new();
    let mut pipe = pipe_in(&scratch.path("pipe"));
    scratch.plugin(
        "broken",
        &format!("[ $CNI_COMMAND = ADD ] || exit 0\n{HANGS}"),
    );
    let runtime = scratch.runtime();
    let attachment = scratch.attachment("c1");
    let network = network("1.0.0", &["broken"]);
    tokio::select! {
        outcome = runtime.add(&network, &attachment) => panic!("{outcome:?}"),
        () = expect(&mut pipe, "started\n") => {}
    }
    closed(&mut pipe).await;
    let cached = runtime.cached().await.unwrap();
    assert!(cached.len() == 1 && !cached[0].complete);
    runtime.del(&attachment, None).await.unwrap();
    assert_eq!(scratch.log(), ["ADD broken", "DEL broken"]);
    assert!(scratch.cache().is_empty());
}

#[tokio::test]
async fn a_process_that_a_plugin_leaves_behind_does_not_hold_up_the_result() {
    let scratch = Scratch::new();
    let pipe = scratch.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Keeps standard output open until another process opens the pipe for writing.
    scratch.plugin(
        "lasting",
        &format!("{WORKS}\n[ $CNI_COMMAND != ADD ] || cat $HERE/pipe &"),
    );
    let runtime = scratch.runtime();
    let network = network("1.0.0", &["lasting"]);
    let added = timeout(SOON, runtime.add(&network, &scratch.attachment("c1")))
        .await
        .unwrap();
    assert_eq!(added.unwrap().parsed.ips.len(), 1);
    let release = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&pipe);
    assert!(release.is_ok(), "it still lives, and ends now");
}

#[tokio::test]
async fn a_large_configuration_that_a_plugin_does_not_read_is_no_obstacle() {
    let scratch = Scratch::new();
    let result = crate::scratch::RESULT;
    scratch.program(
        "deaf",
        &format!("#!/bin/sh\nexec 0<&-\n[ $CNI_COMMAND != ADD ] || echo '{result}'\n"),
    );
    let filling = "x".repeat(400_000);
    let network = parse(&json!({
        "cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "deaf", "filling": filling}],
    }));
    let runtime = scratch.runtime();
    runtime
        .add(&network, &scratch.attachment("c1"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_missing_plugin_is_found_before_anything_runs() {
    let scratch = Scratch::new();
    scratch.plugin("there", WORKS);
    std::fs::write(scratch.path("bin/plain"), "no program").unwrap();
    let runtime = scratch.runtime();
    for missing in ["gone", "plain"] {
        let network = network("1.0.0", &["there", missing]);
        let error = runtime
            .add(&network, &scratch.attachment("c1"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotReady);
        let text = chain(&error);
        assert!(
            text.contains(missing) && text.contains("no such plugin in"),
            "{text}"
        );
    }
    assert!(scratch.log().is_empty() && scratch.cache().is_empty());
}

#[tokio::test]
async fn a_program_that_cannot_be_executed_is_named() {
    let scratch = Scratch::new();
    scratch.program("broken", "#!/none/interpreter\n");
    let error = failure(&scratch, SOON).await;
    assert!(matches!(&error.failure, Failure::Start { path, .. } if path.ends_with("broken")));
}
