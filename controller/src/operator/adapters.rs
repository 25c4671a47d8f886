//! Converts the objects of our parts to the four conditions of a component.
//!
//! Invariant: functions of objects alone; a dead machine is no fault of ours and is not counted.
//! Failure: an object that does not exist has no conditions, which the consolidation knows how to
//! judge.

mod admission;
mod definitions;
mod deployment;
mod nodes;
mod proxy;
mod resource;
mod runtime;
mod webhook;

pub use admission::{Policy, admission};
pub use definitions::{Wanted, definitions};
pub use deployment::deployment;
pub use nodes::{NodeView, ReadyCondition, views};
pub use proxy::proxy;
pub use resource::resource;
pub use runtime::{RuntimeFacts, missing, runtime, runtime_of_nodes};
pub use webhook::{Webhook, webhook};

use std::time::Duration;

use super::component::{ComponentCondition, Conditions};

/// How long something may be short of replicas before that is a fault.
pub const GRACE: Duration = Duration::from_mins(5);

/// The four conditions from the reasons against each; `None` is nothing against it.
fn conditions(
    unavailable: Option<String>,
    progressing: Option<String>,
    degraded: Option<String>,
    not_upgradeable: Option<String>,
) -> Conditions {
    Conditions {
        available: Some(ComponentCondition::unless_any(unavailable)),
        progressing: Some(ComponentCondition::if_any(progressing)),
        degraded: Some(ComponentCondition::if_any(degraded)),
        upgradeable: Some(ComponentCondition::unless_any(not_upgradeable)),
    }
}

/// The first few names, for a sentence.
fn names<'a>(all: impl IntoIterator<Item = &'a str>) -> Option<String> {
    const SHOWN: usize = 5;
    let all: Vec<_> = all.into_iter().collect();
    let more = all.len().saturating_sub(SHOWN);
    let mut text = all.get(..SHOWN.min(all.len()))?.join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    (!all.is_empty()).then_some(text)
}
