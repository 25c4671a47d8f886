//! State that passes share beside the cluster's objects.
//!
//! Invariant: a restart loses nothing of it that matters: slots are counted from tasks, and what was
//! expected has been seen by the time the stores are full.
//! Failure: none.

pub mod avoided;
pub mod condemned;
pub mod expectations;
pub mod reports;
pub mod slots;

use self::avoided::Avoided;
use self::condemned::Condemned;
use self::expectations::Expectations;
use self::reports::Reports;
use self::slots::Slots;

/// What passes share. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Who makes a root disk right now.
    pub slots: Slots,
    /// Writes whose effect the watches have not shown yet.
    pub expected: Expectations,
    /// Nodes that new machines avoid.
    pub avoided: Avoided,
    /// When the status of each group was written.
    pub reports: Reports,
    /// When the status of each replica set was written.
    pub set_reports: Reports,
    /// Machines that replica sets have deleted.
    pub condemned: Condemned,
}
