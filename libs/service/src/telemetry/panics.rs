//! A panic ends the whole program.
//!
//! Invariant: the panic's message is on standard error before the process ends.
//! Failure: none; a program that does not call [`abort_on_panic`] loses only the task or thread
//! that panicked.

use std::panic;
use std::process;

/// From now on a panic in any thread or task aborts the process, as `panic = "abort"` would in a
/// release build.
///
/// For the programs of a node: one that has lost a task would continue and serve half of its
/// requests, where its supervisor can start a whole one. All programs are compiled with unwinding,
/// so that one build serves these and the controller, in which a pass that panics must not end the
/// others.
pub fn abort_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        report(what);
        process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::abort_on_panic;

    /// Set where this program runs itself: the panic must not end the other tests.
    const INSIDE: &str = "VMLET_TEST_PANIC";
    const SIGABRT: i32 = 6;

    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        if std::env::var_os(INSIDE).is_some() {
            abort_on_panic();
            let lost = std::thread::spawn(|| panic!("a request went wrong")).join();
            println!("went on after {lost:?}");
            return;
        }
        let mut itself = Command::new(std::env::current_exe().unwrap());
        itself.args([
            "--exact",
            "telemetry::panics::tests::a_panic_in_any_thread_ends_the_process",
        ]);
        let output = itself.arg("--nocapture").env(INSIDE, "1").output().unwrap();
        assert_eq!(output.status.signal(), Some(SIGABRT), "{output:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("a request went wrong"), "{errors}");
    }
}
