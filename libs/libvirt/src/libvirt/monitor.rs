//! Commands to the emulator itself, for devices that libvirt does not know of.
//!
//! Invariant: a reply counts as success only when the emulator reports it.
//! Failure: [`Error::Refused`] with the emulator's own message.

use serde_json::{Value, json};

use crate::error::readable;
use crate::{Cable, Error, Result};

/// The command that sets the carrier of a NIC.
pub(super) fn cable(nic: &str, cable: Cable) -> String {
    let arguments = json!({"name": nic, "up": cable == Cable::PluggedIn});
    json!({"execute": "set_link", "arguments": arguments}).to_string()
}

/// Whether a reply is one of success.
pub(super) fn check(call: &'static str, reply: &str) -> Result<()> {
    content(call, reply).map(drop)
}

/// The content of a reply.
pub(crate) fn content(call: &'static str, reply: &str) -> Result<Value> {
    let refused = |reason: &str| Error::Refused {
        call,
        reason: readable(reason),
    };
    let mut reply: Value = serde_json::from_str(reply).map_err(|e| refused(&e.to_string()))?;
    if let Some(content) = reply.get_mut("return") {
        return Ok(content.take());
    }
    let words = reply.get("error").and_then(|error| error.get("desc"));
    let words = words.and_then(Value::as_str);
    Err(refused(words.unwrap_or("the emulator gave no reason")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_return_is_success() {
        assert!(check("x", r#"{"return":{},"id":"libvirt-9"}"#).is_ok());
        let refused =
            r#"{"id":"1","error":{"class":"DeviceNotFound","desc":"Device 'n' not found"}}"#;
        let refused = check("x", refused).unwrap_err().to_string();
        assert!(refused.contains("Device 'n' not found"), "{refused}");
        for odd in ["", "{}", "[]", "null"] {
            assert!(check("x", odd).is_err(), "{odd}");
        }
    }
}
