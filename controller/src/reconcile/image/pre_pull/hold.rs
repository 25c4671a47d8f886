//! When a node pulls an image again that it could not pull.
//!
//! Invariant: pure; what follows from recorded times does not depend on a controller that was restarted.
//! Failure: none.

use crds::VirtualMachineTask;
use jiff::Timestamp;

use crate::reconcile::image::task;

/// Longest time in seconds after which a node pulls a version again that it refused.
const LONGEST_HOLD: i64 = 3600;

/// When a node pulls again what it could not pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::reconcile::image) enum Hold {
    /// After some minutes: the source may have other content by then.
    Short,
    /// After an hour: a digest never has another content.
    Long,
    /// Ever later, by the second at which a check found the version: the file may follow its list of checksums.
    Since(i64),
}

impl Hold {
    /// Seconds after a failure.
    pub(super) fn seconds(self, task: &VirtualMachineTask) -> i64 {
        match self {
            Self::Short => task::HOLD,
            Self::Long => LONGEST_HOLD,
            Self::Since(found) => {
                let ended = super::ended(task).map_or(found, Timestamp::as_second);
                ended.saturating_sub(found).clamp(task::HOLD, LONGEST_HOLD)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::the_first_time(10, 300)]
    #[case::ever_later(700, 700)]
    #[case::at_most_an_hour(9000, 3600)]
    #[case::another_clock(-10, 300)]
    fn a_file_that_may_follow_its_list_is_pulled_again_ever_later(
        #[case] after: i64,
        #[case] seconds: i64,
    ) {
        let found = 1_800_000_000;
        let end = Timestamp::from_second(found + after).unwrap();
        let task: VirtualMachineTask = serde_json::from_value(json!({
            "metadata": { "name": "t" },
            "spec": { "nodeName": "n", "kind": "PullImage", "vmName": "i", "vmUID": "u" },
            "status": { "state": "Error", "completionTime": end },
        }))
        .unwrap();
        assert_eq!(Hold::Since(found).seconds(&task), seconds);
        assert_eq!(Hold::Long.seconds(&task), LONGEST_HOLD);
        assert_eq!(Hold::Short.seconds(&task), task::HOLD);
    }
}
