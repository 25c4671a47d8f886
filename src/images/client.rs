//! The HTTP client: its certificates, proxies, redirects and addresses.
//!
//! Invariant: at most ten redirects, never from https to http and never to a refused address, which
//! names never resolve to either; the ring provider does the
//! cryptography; a node without system certificates can still fetch over http and from authorities
//! of its own.
//! Failure: [`Error::Client`] and [`Error::Io`] for an unusable file of authorities, at start-up.

use std::sync::Arc;

use reqwest::redirect::{Attempt, Policy};
use reqwest::{Certificate, Client, ClientBuilder};

use super::addresses::{Guard, Refused};
use super::error::{Error, Result};
use super::settings::{Proxy, Settings};

const MOST_REDIRECTS: usize = 10;
const USER_AGENT: &str = concat!("vmlet/", env!("CARGO_PKG_VERSION"));

/// Makes the client that all downloads of a store share, and how others are made that trust the
/// same authorities. Blocks while it reads certificates.
pub(super) fn client(
    settings: &Settings,
    guard: &Guard,
) -> Result<(Client, impl Fn() -> ClientBuilder + Send + Sync + use<>)> {
    // An error means that the program has installed a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let own = own_authorities(settings)?;
    let with_own = builder(settings, guard).tls_certs_merge(own.iter().cloned());
    let (client, system) = match with_own.build() {
        Ok(client) => (client, true),
        Err(error) => {
            tracing::warn!(%error, "no system certificates found: https needs a CA file");
            let none = builder(settings, guard).tls_certs_only(std::iter::empty());
            let client = none.build().map_err(|e| Error::Client(Arc::new(e)))?;
            (client, false)
        }
    };
    let (settings, guard) = (settings.clone(), guard.clone());
    let more = move || match system {
        true => builder(&settings, &guard).tls_certs_merge(own.iter().cloned()),
        false => builder(&settings, &guard).tls_certs_only(own.iter().cloned()),
    };
    Ok((client, more))
}

fn builder(settings: &Settings, guard: &Guard) -> ClientBuilder {
    let redirects = guard.clone();
    let builder = Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(settings.connect_timeout)
        .referer(false)
        .dns_resolver(guard.clone())
        .redirect(Policy::custom(move |attempt| follow(attempt, &redirects)));
    match settings.proxy {
        Proxy::Environment => builder,
        Proxy::Direct => builder.no_proxy(),
    }
}

fn own_authorities(settings: &Settings) -> Result<Vec<Certificate>> {
    let Some(path) = &settings.ca_file else {
        return Ok(Vec::new());
    };
    let pem = std::fs::read(path).map_err(Error::io("read certificate authorities from", path))?;
    Certificate::from_pem_bundle(&pem).map_err(|e| Error::Client(Arc::new(e)))
}

fn follow(attempt: Attempt<'_>, guard: &Guard) -> reqwest::redirect::Action {
    let from_https = attempt
        .previous()
        .last()
        .is_some_and(|url| url.scheme() == "https");
    if attempt.previous().len() > MOST_REDIRECTS {
        attempt.error("more than 10 redirects")
    } else if from_https && attempt.url().scheme() != "https" {
        attempt.error("redirected from https to http")
    } else if guard.check_url(attempt.url()).is_err() {
        attempt.error(Refused)
    } else {
        attempt.follow()
    }
}

/// Whether the server showed a certificate that is not accepted.
pub(super) fn is_untrusted(error: &reqwest::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = next {
        let refused = current.downcast_ref::<rustls::Error>();
        if matches!(refused, Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        // The text of an I/O error omits the error inside and has only the cause of that.
        let io = current.downcast_ref::<std::io::Error>();
        next = match io.and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => current.source(),
        };
    }
    false
}
