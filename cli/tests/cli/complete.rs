//! Completion as shells and kubectl ask for it.
//!
//! Invariant: there is no cluster, so that no name is found.
//! Failure: a word too many would end up in a command line.

use std::os::unix::fs::symlink;

use super::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vmletctl");

async fn answer(program: &Path, asked: &[(&str, &str)], words: &[&str]) -> Said {
    let child = Command::new(program)
        .args(words)
        .envs(asked.iter().copied())
        .env("KUBECONFIG", "/nonexistent/kubeconfig")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    finished(child.unwrap()).await
}

#[tokio::test]
async fn kubectl_asks_by_another_name_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("kubectl_complete-vmlet");
    symlink(PROGRAM, &link).unwrap();
    let said = answer(&link, &[], &["image", "l"]).await;
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    assert!(said.out.starts_with("list\tList images"), "{}", said.out);
    assert!(said.out.ends_with("\n:4\n"), "{}", said.out);
    let said = answer(&link, &[], &["logs", ""]).await;
    assert_eq!((said.out.as_str(), said.err.as_str()), (":4\n", ""));
}

#[tokio::test]
async fn a_shell_asks_by_a_variable() {
    let asked = [("VMLETCTL_COMPLETE", "bash"), ("_CLAP_COMPLETE_INDEX", "1")];
    let said = answer(Path::new(PROGRAM), &asked, &["--", "vmletctl", "compl"]).await;
    assert_eq!((said.code, said.out.as_str()), (Some(0), "completion"));
    let asked = [("VMLETCTL_COMPLETE", "no-shell")];
    let said = answer(Path::new(PROGRAM), &asked, &["--", "vmletctl", "compl"]).await;
    assert_eq!((said.out.as_str(), said.err.as_str()), ("", ""));
}
