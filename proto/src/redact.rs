//! Prints registry credentials without their secrets.
//!
//! Invariant: the fields marked `debug_redact` in the proto never reach a log through `{:?}`, also
//! when the message is printed as a part of another one.
//! Failure: none.

use std::fmt;

use crate::v1::AuthConfig;

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("password", &Secret(&self.password))
            .field("auth", &Secret(&self.auth))
            .field("server_address", &self.server_address)
            .field("identity_token", &Secret(&self.identity_token))
            .field("registry_token", &Secret(&self.registry_token))
            .finish()
    }
}

/// Tells whether a secret is there, and nothing else.
struct Secret<'a>(&'a str);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() {
            "none"
        } else {
            "redacted"
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::v1::{AuthConfig, PullImageRequest};

    #[test]
    fn secrets_of_a_pull_request_do_not_show_in_its_debug_text() {
        let request = PullImageRequest {
            auth: Some(AuthConfig {
                username: "ann".into(),
                password: "s3cret-a".into(),
                auth: "s3cret-b".into(),
                server_address: "registry.example".into(),
                identity_token: "s3cret-c".into(),
                registry_token: "s3cret-d".into(),
            }),
            ..Default::default()
        };
        let text = format!("{request:?}");
        assert!(
            text.contains("ann") && text.contains("registry.example"),
            "{text}"
        );
        assert!(!text.contains("s3cret"), "{text}");
    }
}
