//! Completion as shells and kubectl request it.
//!
//! Invariant: there is no cluster, so that no name is found.
//! Failure: a word too many would end up in a command line.

use std::os::unix::fs::symlink;

use super::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vmletctl");

async fn answer(program: &Path, variables: &[(&str, &str)], words: &[&str]) -> Finished {
    let child = Command::new(program)
        .args(words)
        .envs(variables.iter().copied())
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    finished(child.unwrap()).await
}

#[tokio::test]
async fn kubectl_requests_completion_by_another_program_name() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("kubectl_complete-vmlet");
    symlink(PROGRAM, &link).unwrap();
    let output = answer(&link, &[], &["image", "l"]).await;
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    assert!(
        output.out.starts_with("list\tList images"),
        "{}",
        output.out
    );
    assert!(output.out.ends_with("\n:4\n"), "{}", output.out);
    let output = answer(&link, &[], &["logs", ""]).await;
    assert_eq!((output.out.as_str(), output.err.as_str()), (":4\n", ""));
}

#[tokio::test]
async fn a_shell_requests_completion_by_a_variable() {
    let variables = [("VMLETCTL_COMPLETE", "bash"), ("_CLAP_COMPLETE_INDEX", "1")];
    let output = answer(Path::new(PROGRAM), &variables, &["--", "vmletctl", "compl"]).await;
    assert_eq!((output.code, output.out.as_str()), (Some(0), "completion"));
    let variables = [("VMLETCTL_COMPLETE", "no-shell")];
    let output = answer(Path::new(PROGRAM), &variables, &["--", "vmletctl", "compl"]).await;
    assert_eq!((output.out.as_str(), output.err.as_str()), ("", ""));
}

#[tokio::test]
async fn pods_of_the_node_are_those_of_its_daemon() {
    let node = Node::start(Scenario::default());
    let made = node.ctl(&["run", "pod.yaml", "--detach"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let words = ["--", "vmletctl", "node", "stop", "h"];
    let child = command(&node.path("vmlet.sock"), node.dir.path(), &words)
        .env("VMLETCTL_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "3")
        .spawn();
    let output = finished(child.unwrap()).await;
    assert_eq!((output.out.as_str(), output.err.as_str()), ("hello", ""));
}
