//! Removes everything that a run has created.
//!
//! Invariant: sandboxes are found by the uid of this run, so that one whose id never reached us is
//! removed too, and no other object ever is.
//! Failure: said on stderr with the command that repeats it; the run's own outcome stands.

use crate::commands::rm::remove_log;
use crate::request::{log_path, uid_labels};
use crate::runtime::CallError;
use crate::table::short;

use super::Run;

impl Run {
    pub(super) async fn tear_down(&self) {
        if let Err(error) = self.remove_sandboxes().await {
            let pod = &self.pod;
            eprintln!("warning: the pod could not be removed: {error}");
            eprintln!(
                "  repeat with: vmletctl rm -f -n {} {}",
                pod.namespace, pod.name
            );
            return;
        }
        remove_log(&self.log_directory.join(log_path(&self.pod)));
    }

    async fn remove_sandboxes(&self) -> Result<(), CallError> {
        for sandbox in self.runtime.sandboxes(uid_labels(&self.pod)).await? {
            self.runtime.stop_sandbox(&sandbox.id).await?;
            self.runtime.remove_sandbox(&sandbox.id).await?;
            eprintln!("removed  {}", short(&sandbox.id));
        }
        Ok(())
    }
}
