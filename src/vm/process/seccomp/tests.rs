use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::prctl::set_no_new_privs;

use super::*;

/// Runs a command under a filter; what it writes.
#[allow(unsafe_code)] // A process with a filter can be made in no other way.
fn run(filter: &Bytes, script: &str) -> String {
    let instructions: Vec<libc::sock_filter> = filter
        .chunks_exact(8)
        .map(|bytes| libc::sock_filter {
            code: u16::from_ne_bytes([bytes[0], bytes[1]]),
            jt: bytes[2],
            jf: bytes[3],
            k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
        .collect();
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let install = move || {
        set_no_new_privs()?;
        let program = libc::sock_fprog {
            len: u16::try_from(instructions.len()).unwrap(),
            filter: instructions.as_ptr().cast_mut(),
        };
        // SAFETY: the kernel reads the program before the call returns.
        let result = unsafe {
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
        };
        nix::errno::Errno::result(result)?;
        Ok(())
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(install) };
    let output = command.output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

fn localhost(content: &str) -> Result<Bytes, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    let filter = Profile::Localhost(file.path().to_owned()).filter(&[]);
    filter.map_err(|e| crate::one_line(&e))
}

#[test]
fn a_profile_of_the_node_refuses_what_it_names() {
    assert!(Profile::Unconfined.filter(&[]).unwrap().is_empty());
    let filter = localhost(
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": [
            {"names": ["uname", "no_such_call"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13},
            {"names": ["fchmodat"], "action": "SCMP_ACT_ERRNO", "comment": "x",
             "args": [{"index": 2, "value": 511, "valueTwo": 420, "op": "SCMP_CMP_MASKED_EQ"}]}]}"#,
    );
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "uname; cd {}; touch x; chmod 600 x && echo changed; chmod 644 x || echo refused",
        folder.path().display()
    );
    let output = run(&filter.unwrap(), &script);
    assert!(output.contains("Permission denied"), "{output}");
    assert!(
        output.contains("changed") && output.contains("refused"),
        "{output}"
    );
}

#[test]
fn the_default_profile_follows_the_capabilities() {
    let status = "grep Seccomp: /proc/self/status";
    let filter = Profile::RuntimeDefault.filter(&[]).unwrap();
    let script = format!("{status}; unshare -U true || echo refused; sh -c 'echo child'");
    let output = run(&filter, &script);
    assert!(output.contains("Seccomp:\t2"), "{output}");
    assert!(
        output.contains("refused") && output.contains("child"),
        "{output}"
    );
    assert!(filter.len() / 8 <= 4096);
    // All capabilities.
    let all: Vec<_> = (0..64).collect();
    let filter = Profile::RuntimeDefault.filter(&all).unwrap();
    let output = run(&filter, "unshare -U true && echo done");
    // A kernel that forbids it to this test forbids it under the filter, too.
    let unfiltered = Command::new("unshare").args(["-U", "true"]).output();
    let is_allowed = unfiltered.unwrap().status.success();
    assert_eq!(output.contains("done"), is_allowed, "{output}");
    let shorter = filter.len();
    assert!(shorter < Profile::RuntimeDefault.filter(&[]).unwrap().len());
}

#[test]
fn what_cannot_be_applied_is_refused() {
    let refused = |content: &str| localhost(content).unwrap_err();
    let missing = Profile::Localhost("/no/such/file".into()).filter(&[]);
    let missing = crate::one_line(&missing.unwrap_err());
    assert!(
        missing.contains("read the seccomp profile /no/such/file"),
        "{missing}"
    );
    for (content, expected) in [
        ("x", "not of the OCI runtime specification"),
        (
            r#"{"defaultAction": "SCMP_ACT_SOME"}"#,
            "no action is SCMP_ACT_SOME",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#,
            "SCMP_ACT_NOTIFY is not available",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_LOG"]}"#,
            "the flag SECCOMP_FILTER_FLAG_LOG",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
                {"names": ["chown"], "action": "SCMP_ACT_KILL", "includes": {"caps": ["CAP_X"]}}]}"#,
            "unknown field `includes`",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_PDP"]}"#,
            "no architecture is SCMP_ARCH_PDP",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["chown"],
                "action": "SCMP_ACT_KILL", "args": [{"index": 9, "value": 0, "op": "SCMP_CMP_EQ"}]}]}"#,
            "no system call has an argument 9",
        ),
    ] {
        let reason = refused(content);
        assert!(reason.contains(expected), "{reason}");
    }
    let long = format!(r#"{{"defaultAction": "{}"}}"#, "x".repeat(1 << 20));
    assert!(refused(&long).contains("more than 1048576 bytes"));
}
