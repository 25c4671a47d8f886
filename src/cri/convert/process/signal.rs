//! Stop signals.
//!
//! Invariant: CRI numbers signals in an order of its own; those of Linux go by name.
//! Failure: [`Invalid`] for a number that CRI does not have, and for
//! real-time signals, which `vmlet-guest` does not send.

use std::str::FromStr;

use cri_proto::v1;
use nix::sys::signal::Signal;

use crate::cri::convert::{Invalid, Result, check};

/// Linux's number; SIGTERM without a request.
pub(super) fn number(signal: i32) -> Result<i32> {
    let signal = check::known::<v1::Signal>("config.stop_signal", signal)?;
    let name = match signal.as_str_name() {
        "RUNTIME_DEFAULT" => "SIGTERM",
        "SIGCLD" => "SIGCHLD",
        "SIGIOT" => "SIGABRT",
        "SIGPOLL" => "SIGIO",
        name => name,
    };
    match Signal::from_str(name) {
        Ok(signal) => Ok(signal as i32),
        Err(_) => {
            let reason = format!("{name} is a real-time signal, which is not available");
            Err(Invalid::new("config.stop_signal", reason))
        }
    }
}
