//! By which credentials an image came, and so who uses it without a request to its server.
//!
//! Invariant: an image that came without credentials is for every pull; any other one is for pulls with
//! credentials that brought it, and of an image without a record nothing is known. An identity is a
//! digest with a key of this node: neither it nor the database shows credentials.
//! Failure: none; a pull whose identity is not recorded asks the server.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;
use sha2::{Digest as _, Sha256};

use super::digest::Digest;
use super::registry::Credentials;
use super::transport::ServerTls;

/// Most identities that are kept of an image; the oldest go first. Passwords of some registries change
/// twice a day.
pub(super) const MOST: usize = 64;

const ANYONE: &str = "anyone";

/// How a pull identifies itself to the server of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identity {
    /// Without credentials.
    Anyone,
    /// With those that this stands for.
    Holder(Digest),
}

/// The key of the identities of a node.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Key([u8; 32]);

/// The identities by which an image came, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Access(Vec<Identity>);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anyone => f.write_str(ANYONE),
            Self::Holder(mark) => f.write_str(&mark.hex()),
        }
    }
}

impl FromStr for Identity {
    type Err = super::digest::ParseDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            ANYONE => Ok(Self::Anyone),
            text => Digest::from_hex(text).map(Self::Holder),
        }
    }
}

impl Key {
    /// The key that these bytes of the database are.
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The identity of a pull from a registry.
    pub(super) fn with_credentials(&self, given: Option<&Credentials>) -> Identity {
        self.identity("credentials", given.map(Credentials::mark))
    }

    /// The identity of a pull from a web server, by a URL that is signed where it is given here.
    pub(super) fn with_file(&self, signed: Option<&Url>, given: Option<&ServerTls>) -> Identity {
        let tls = given.map(|ServerTls(given)| given.fingerprint());
        let Some(url) = signed else {
            return self.identity("tls", tls);
        };
        let both = Sha256::new_with_prefix(tls.unwrap_or_default());
        let both = both.chain_update(url.as_str()).finalize();
        self.identity("url", Some(both.into()))
    }

    fn identity(&self, kind: &str, mark: Option<[u8; 32]>) -> Identity {
        let Some(mark) = mark else {
            return Identity::Anyone;
        };
        let keyed = Sha256::new_with_prefix(self.0);
        let keyed = keyed.chain_update(mark).chain_update(kind);
        Identity::Holder(Digest::from_bytes(keyed.finalize().into()))
    }
}

/// Without the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Access {
    /// The access to an image of which nothing is known.
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Whether a pull needs no answer of the server.
    pub(super) fn admits(&self, identity: Identity) -> bool {
        self.is_for_all() || self.0.contains(&identity)
    }

    /// Whether nothing is recorded: an earlier version brought the image, or a client sent it.
    pub(super) const fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that the image came so.
    pub(super) fn add(&mut self, identity: Identity) {
        if self.is_for_all() {
            return;
        }
        match identity {
            Identity::Anyone => self.0.clear(),
            Identity::Holder(_) => self.0.retain(|known| *known != identity),
        }
        self.0.push(identity);
        let surplus = self.0.len().saturating_sub(MOST);
        self.0.drain(..surplus);
    }

    fn is_for_all(&self) -> bool {
        self.0.contains(&Identity::Anyone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(number: u8) -> Identity {
        Identity::Holder(Digest::from_bytes([number; 32]))
    }

    #[test]
    fn an_image_is_for_those_who_brought_it_until_it_came_without_credentials() {
        let mut access = Access::new();
        assert!(access.is_unknown() && !access.admits(Identity::Anyone));
        access.add(holder(1));
        assert!(access.admits(holder(1)) && !access.is_unknown());
        assert!(!access.admits(holder(2)) && !access.admits(Identity::Anyone));
        access.add(Identity::Anyone);
        assert!(access.admits(holder(2)) && access.admits(Identity::Anyone));
        access.add(holder(3));
        assert_eq!(access, Access(vec![Identity::Anyone]));
    }

    #[test]
    fn the_oldest_identities_are_forgotten_first() {
        let mut access = Access::new();
        for number in 0..=64 {
            access.add(holder(number));
            access.add(holder(1));
        }
        assert_eq!(access.0.len(), MOST);
        assert!(access.admits(holder(1)) && access.admits(holder(64)));
        assert!(!access.admits(holder(0)));
    }

    #[test]
    fn an_identity_is_one_of_its_credentials_its_kind_and_its_node() {
        let one = Key::new(b"one");
        let other = Key::new(b"other");
        let mark = Some([7; 32]);
        let identity = one.identity("tls", mark);
        assert_eq!(identity, one.identity("tls", mark));
        assert_ne!(identity, one.identity("tls", Some([8; 32])));
        assert_ne!(identity, one.identity("credentials", mark));
        assert_ne!(identity, other.identity("tls", mark));
        assert_eq!(one.with_file(None, None), Identity::Anyone);
        let signed = |query: &str| {
            let url = Url::parse(&format!("https://h/a?{query}")).unwrap();
            one.with_file(Some(&url), None)
        };
        assert_eq!(signed("key=1"), signed("key=1"));
        assert_ne!(signed("key=1"), signed("key=2"));
        assert_ne!(signed("key=1"), Identity::Anyone);
        assert_eq!(format!("{one:?}"), "Key");
        for identity in [identity, Identity::Anyone] {
            assert_eq!(identity.to_string().parse(), Ok(identity));
        }
        assert!("anybody".parse::<Identity>().is_err());
    }
}
