//! Header values with credentials.
//!
//! Invariant: they are sensitive: what logs headers leaves them out.
//! Failure: a text that no header can have is none.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;

/// A user name and its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Name of the user.
    pub user: String,
    /// Password of the user.
    pub password: String,
}

impl Login {
    /// Reads base64 of `user:password`, as the field `auth` of configuration files has it.
    #[must_use]
    pub fn decode(auth: &str) -> Option<Self> {
        let decoded = STANDARD.decode(auth.trim()).ok()?;
        // Some clients pad the decoded text with NUL.
        let text = String::from_utf8(decoded).ok()?;
        let (user, password) = text.trim_end_matches('\0').split_once(':')?;
        Some(Self {
            user: user.to_owned(),
            password: password.to_owned(),
        })
    }

    /// The header of basic authentication.
    #[must_use]
    pub fn header(&self) -> Option<HeaderValue> {
        basic(&self.user, &self.password)
    }
}

/// Without any of it.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

/// The header of basic authentication.
#[must_use]
pub fn basic(user: &str, password: &str) -> Option<HeaderValue> {
    let encoded = STANDARD.encode(format!("{user}:{password}"));
    sensitive(&format!("Basic {encoded}"))
}

/// The header of a token.
#[must_use]
pub fn bearer(token: &str) -> Option<HeaderValue> {
    sensitive(&format!("Bearer {token}"))
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_a_password_are_the_same_header() {
        let decoded = Login::decode(&format!(" {}\n", STANDARD.encode("me:hush:hush\0\0")));
        let decoded = decoded.unwrap();
        assert_eq!(format!("{decoded:?}"), "Login");
        let header = decoded.header().unwrap();
        assert_eq!(Some(&header), basic("me", "hush:hush").as_ref());
        assert!(header.is_sensitive());
        assert_eq!(format!("{header:?}"), "Sensitive");
    }

    #[test]
    fn what_is_no_password_or_token_is_absent() {
        for auth in [
            "",
            "%",
            &STANDARD.encode("no-colon"),
            &STANDARD.encode([0xff]),
        ] {
            assert_eq!(Login::decode(auth), None);
        }
        assert_eq!(bearer("a\nb"), None);
        assert!(bearer("t").is_some_and(|value| value.is_sensitive()));
    }
}
