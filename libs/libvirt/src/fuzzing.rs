//! What the checks of `tests/fuzz` reach of this crate, besides its public modules.
//!
//! Invariant: nothing here is used by a program; each function is the one that reads replies.
//! Failure: that of the function behind it.

use serde_json::Value;

use crate::Result;
use crate::guest::AgentReply;
use crate::libvirt::monitor_reply as of_monitor;

/// The content of a reply of a guest agent.
pub fn agent_reply(reply: &str) -> Result<Value> {
    AgentReply::new(reply.to_owned()).read(usize::MAX)
}

/// The content of a reply of the emulator.
pub fn monitor_reply(reply: &str) -> Result<Value> {
    of_monitor("read a reply", reply)
}
