//! What a client shows to a registry: the `auth` of a pull.
//!
//! Invariant: credentials live for one pull, in memory; no log, error, file or row has them.
//! They go to the host that they are for, never to a mirror.
//! Failure: none; a text that is no base64 of `user:password` counts as absent.

use std::fmt;

use http::HeaderValue;
use registry_auth::{Login, basic, host_in};
use sha2::{Digest as _, Sha256};

/// Credentials of a pull. Empty texts are absent ones.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// User name.
    pub username: String,
    /// Password of the user.
    pub password: String,
    /// The same in one: base64 of `user:password`.
    pub auth: String,
    /// Token that the registry's authorization service takes in exchange for another one.
    pub identity_token: String,
    /// Bearer token for the registry itself.
    pub registry_token: String,
    /// Host that they are for; empty: that of the image.
    pub server_address: String,
}

impl Credentials {
    /// `None` where there is nothing in them.
    pub fn given(self) -> Option<Self> {
        let Self {
            username,
            auth,
            identity_token,
            registry_token,
            ..
        } = &self;
        let empty = [username, auth, identity_token, registry_token];
        (!empty.iter().all(|text| text.is_empty())).then_some(self)
    }

    /// Whether they are for this host of a registry.
    pub(super) fn are_for(&self, host: &str) -> bool {
        self.server_address.is_empty() || host_in(&self.server_address) == host_in(host)
    }

    /// The header of basic authentication.
    pub(super) fn basic(&self) -> Option<HeaderValue> {
        if self.username.is_empty() {
            Login::decode(&self.auth)?.header()
        } else {
            basic(&self.username, &self.password)
        }
    }

    /// A digest of the credentials, by which pulls with different credentials have different keys.
    pub(in crate::images) fn mark(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        for text in [
            &self.username,
            &self.password,
            &self.auth,
            &self.identity_token,
            &self.registry_token,
            &self.server_address,
        ] {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.finalize().into()
    }
}

/// Without any of it.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn both_spellings_of_a_password_are_the_same_header() {
        let two = Credentials {
            username: "me".into(),
            password: "hush:hush".into(),
            ..Credentials::default()
        };
        let one = Credentials {
            auth: STANDARD.encode("me:hush:hush\0\0"),
            ..Credentials::default()
        };
        assert_eq!(two.basic(), one.basic());
        assert!(two.basic().is_some_and(|value| value.is_sensitive()));
        assert_eq!(format!("{two:?}"), "Credentials");
        assert_ne!(two.mark(), one.mark());
    }

    #[test]
    fn what_is_no_password_is_absent() {
        for auth in [
            "",
            "%",
            &STANDARD.encode("no-colon"),
            &STANDARD.encode([0xff]),
        ] {
            let credentials = Credentials {
                auth: auth.to_owned(),
                ..Credentials::default()
            };
            assert_eq!(credentials.basic(), None);
        }
        assert_eq!(Credentials::default().given(), None);
    }

    #[test]
    fn credentials_are_for_the_host_that_they_name() {
        let of = |server_address: &str| Credentials {
            server_address: server_address.to_owned(),
            ..Credentials::default()
        };
        assert!(of("").are_for("r.example"));
        assert!(of("https://r.example/v2/").are_for("r.example"));
        assert!(of("https://index.docker.io/v1/").are_for("docker.io"));
        assert!(!of("r.example").are_for("r.example:5000"));
    }
}
