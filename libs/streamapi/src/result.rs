//! Results of commands, as the error stream carries them.
//!
//! Invariant: the newer form is one `Status` object of Kubernetes; the older one is a text, and
//! nothing for success.
//! Failure: none.

use serde_json::{Value, json};

/// The exit code of a command, or why there is none.
pub type Outcome = Result<i32, String>;

/// The form of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Results {
    /// A `Status` object.
    Json,
    /// A text.
    Text,
}

impl Results {
    /// The content of the error stream.
    #[must_use]
    pub fn write(self, outcome: &Outcome) -> Vec<u8> {
        match (self, outcome) {
            (Self::Text, Ok(0)) => Vec::new(),
            (Self::Text, Ok(code)) => with_code(*code).into_bytes(),
            (Self::Text, Err(message)) => message.clone().into_bytes(),
            (Self::Json, Ok(0)) => status(&json!({ "status": "Success" })),
            (Self::Json, Ok(code)) => status(&json!({
                "status": "Failure",
                "message": with_code(*code),
                "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            })),
            (Self::Json, Err(message)) => status(&json!({
                "status": "Failure",
                "message": message,
                "reason": "InternalError",
                "details": { "causes": [{ "message": message }] },
                "code": 500,
            })),
        }
    }
}

fn with_code(code: i32) -> String {
    format!("command terminated with exit code {code}")
}

/// A `Status` object of Kubernetes.
fn status(fields: &Value) -> Vec<u8> {
    let mut object = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {} });
    if let Some(object) = object.as_object_mut()
        && let Some(fields) = fields.as_object()
    {
        object.extend(fields.clone());
    }
    object.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_form_of_the_version() {
        let read = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).unwrap();
        let new = Results::Json;
        assert_eq!(read(new.write(&Ok(0)))["status"], "Success");
        let failed = read(new.write(&Ok(3)));
        assert_eq!(failed["reason"], "NonZeroExitCode");
        assert_eq!(failed["details"]["causes"][0]["message"], "3");
        assert_eq!(read(new.write(&Err("x".to_owned())))["code"], 500);
        assert_eq!(Results::Text.write(&Ok(0)), b"");
        let text = String::from_utf8(Results::Text.write(&Ok(3))).unwrap();
        assert!(text.ends_with("exit code 3"), "{text}");
        assert_eq!(Results::Text.write(&Err("x".to_owned())), b"x");
    }
}
