//! How the server of a translated image is reached: Virtlet's transport profiles.
//!
//! Invariant: a profile is checked whole before a rule uses it: certificates and key are read, and
//! a client is built. What it has no value for is as for all other downloads. The addresses of
//! servers are checked as for those.
//! Failure: a sentence that names the field, without its value.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Url};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::client::Clients;

/// Most redirects that a profile may allow.
const MOST_REDIRECTS: i64 = 100;

/// Keys of a Secret that are used.
const SECRET_KEYS: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// A profile in a file, as Virtlet has it.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Written {
    timeout: Option<i64>,
    max_redirects: Option<i64>,
    proxy: Option<String>,
    tls: Option<WrittenTls>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct WrittenTls {
    certificates: Option<Vec<WrittenCertificate>>,
    server_name: Option<String>,
    insecure: Option<bool>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCertificate {
    cert: String,
    key: Option<String>,
}

/// A profile that was read.
pub(super) struct Profile {
    /// Longest time of a download, with its repetitions.
    timeout: Option<Duration>,
    pub(super) max_redirects: Option<usize>,
    pub(super) proxy: Option<Url>,
    pub(super) tls: Option<Tls>,
    fingerprint: [u8; 32],
}

/// What differs in the encryption.
pub(super) struct Tls {
    /// Trusted beside the authorities of all downloads.
    pub(super) authorities: Vec<CertificateDer<'static>>,
    /// What the client shows.
    pub(super) identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    pub(super) trust: Trust,
}

/// Which certificate of a server is accepted.
pub(super) enum Trust {
    /// One for the host in the URL.
    Host,
    /// One for this name.
    Name(ServerName<'static>),
    /// Any.
    Anyone,
}

/// A profile, ready for use.
pub(super) struct Transport {
    client: Client,
    timeout: Option<Duration>,
    fingerprint: [u8; 32],
}

/// Certificates for the server of one image, ready for use. What came by them is known by them: a
/// pull with others, or with none, takes nothing from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls(pub(super) Arc<Transport>);

impl Written {
    /// Checks what a file says.
    pub(super) fn profile(&self) -> Result<Profile, String> {
        let timeout = self.timeout.unwrap_or_default();
        let timeout = u64::try_from(timeout).ok().filter(|ms| *ms > 0);
        let max_redirects = match self.max_redirects {
            None => None,
            Some(most) if (0..=MOST_REDIRECTS).contains(&most) => usize::try_from(most).ok(),
            Some(_) => return Err(format!("maxRedirects is not in 0 to {MOST_REDIRECTS}")),
        };
        let proxy = given(self.proxy.as_deref()).map(proxy).transpose()?;
        let tls = self.tls.as_ref().map(WrittenTls::tls).transpose()?;
        let text = serde_json::to_vec(self).map_err(|e| e.to_string())?;
        Ok(Profile {
            timeout: timeout.map(Duration::from_millis),
            max_redirects,
            proxy,
            tls: tls.flatten(),
            fingerprint: Sha256::digest(text).into(),
        })
    }
}

impl Profile {
    /// The profile of a Secret: authorities in `ca.crt`, a client certificate in `tls.crt` and
    /// `tls.key`. An empty value counts as none.
    pub(super) fn of_secret(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, String> {
        let value = |key: &str| data.get(key).filter(|value| !value.is_empty());
        let mut hash = Sha256::new();
        for key in SECRET_KEYS {
            let value = value(key).map_or(&[][..], Vec::as_slice);
            hash.update((value.len() as u64).to_be_bytes());
            hash.update(value);
        }
        let [authorities, chain, key] = SECRET_KEYS.map(value);
        let identity = match (chain, key) {
            (Some(chain), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(key);
                let key =
                    key.map_err(|_| "tls.key has no private key in PEM without a passphrase")?;
                Some((chain_of("tls.crt", chain)?, key))
            }
            (None, None) if authorities.is_none() => {
                return Err("it has none of ca.crt, tls.crt and tls.key".to_owned());
            }
            (None, None) => None,
            _ => return Err("it has only one of tls.crt and tls.key".to_owned()),
        };
        let authorities = match authorities {
            Some(authorities) => chain_of("ca.crt", authorities)?,
            None => Vec::new(),
        };
        for authority in &authorities {
            if !is_authority(authority).map_err(|_| "ca.crt has a certificate that is not valid")? {
                return Err("ca.crt has a certificate that is no authority".to_owned());
            }
        }
        Ok(Self {
            timeout: None,
            max_redirects: None,
            proxy: None,
            tls: Some(Tls {
                authorities,
                identity,
                trust: Trust::Host,
            }),
            fingerprint: hash.finalize().into(),
        })
    }
}

/// The certificates in a value of a Secret.
fn chain_of(key: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{key} has no certificate in PEM")),
    }
}

impl WrittenTls {
    /// `None` where nothing differs.
    fn tls(&self) -> Result<Option<Tls>, String> {
        let name = given(self.server_name.as_deref());
        let trust = match (name, self.insecure.unwrap_or_default()) {
            (Some(_), true) => {
                return Err("tls.serverName has no effect beside tls.insecure".to_owned());
            }
            (None, true) => Trust::Anyone,
            (None, false) => Trust::Host,
            (Some(name), false) => {
                let name = ServerName::try_from(name.to_owned());
                Trust::Name(name.map_err(|_| "tls.serverName is no name of a server")?)
            }
        };
        let mut tls = Tls {
            authorities: Vec::new(),
            identity: None,
            trust,
        };
        for (index, entry) in self.certificates.iter().flatten().enumerate() {
            let refuse = |reason: String| format!("tls.certificates[{index}]: {reason}");
            entry.read(&mut tls).map_err(refuse)?;
        }
        let differs = !tls.authorities.is_empty()
            || tls.identity.is_some()
            || !matches!(tls.trust, Trust::Host);
        Ok(differs.then_some(tls))
    }
}

impl WrittenCertificate {
    /// Authorities are trusted; other certificates are the client's, and need a key.
    fn read(&self, tls: &mut Tls) -> Result<(), String> {
        let found: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(self.cert.as_bytes()).collect();
        let found = found.map_err(|_| "cert is not in PEM")?;
        if found.is_empty() {
            return Err("cert has no certificate in PEM".to_owned());
        }
        let mut own = Vec::new();
        for certificate in &found {
            if is_authority(certificate)? {
                tls.authorities.push(certificate.clone())
            } else {
                own.push(certificate.clone())
            }
        }
        let key = match given(self.key.as_deref()) {
            Some(key) => Some(
                PrivateKeyDer::from_pem_slice(key.as_bytes())
                    .map_err(|_| "key is no private key in PEM without a passphrase")?,
            ),
            // It may be in the same text.
            None => PrivateKeyDer::from_pem_slice(self.cert.as_bytes()).ok(),
        };
        match (own.is_empty(), key) {
            (true, None) => Ok(()),
            (true, Some(_)) => Err("it has a key, but cert has authorities only".to_owned()),
            (false, None) => Err("cert is no authority, and there is no key for it".to_owned()),
            (false, Some(_)) if tls.identity.is_some() => {
                Err("it is a second client certificate".to_owned())
            }
            (false, Some(key)) => {
                tls.identity = Some((found, key));
                Ok(())
            }
        }
    }
}

fn is_authority(certificate: &CertificateDer<'_>) -> Result<bool, &'static str> {
    match x509_parser::parse_x509_certificate(certificate) {
        Ok((_, parsed)) => Ok(parsed.is_ca()),
        Err(_) => Err("cert has a certificate that is not valid"),
    }
}

fn proxy(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|_| "proxy is no valid URL")?;
    match url.scheme() {
        "http" | "https" if url.host_str().is_some() => Ok(url),
        _ => Err("proxy is neither http nor https".to_owned()),
    }
}

/// Virtlet knows no difference between an empty text and none.
pub(super) fn given(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

impl Transport {
    /// Blocks while it reads the system's authorities.
    pub(super) fn new(profile: &Profile, clients: &Clients) -> Result<Self, String> {
        Ok(Self {
            client: clients.for_profile(profile)?,
            timeout: profile.timeout,
            fingerprint: profile.fingerprint,
        })
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    pub(super) const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Equal for equal profiles.
    pub(super) const fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

impl PartialEq for Transport {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for Transport {}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
