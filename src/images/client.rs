//! The HTTP clients: their certificates, proxies, redirects and addresses.
//!
//! Invariant: at most ten redirects or those of a profile, never from https to http and never to a
//! refused address, which names never resolve to either; the ring provider does the cryptography; a
//! node without system certificates can still fetch over http and from authorities of its own.
//! Failure: [`Error::Client`] and [`Error::Io`] for an unusable file of authorities, at start-up; a
//! sentence for a profile.

use std::sync::Arc;

use reqwest::redirect::{Attempt, Policy};
use reqwest::{Certificate, Client, ClientBuilder};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::addresses::{Guard, Refused};
use super::error::{Error, Result};
use super::settings::{Proxy, Settings};
use super::transport::Profile;

mod tls;

const MOST_REDIRECTS: usize = 10;
const USER_AGENT: &str = concat!("vmlet/", env!("CARGO_PKG_VERSION"));

/// Makes clients that trust the same authorities.
#[derive(Clone)]
pub(super) struct Clients {
    settings: Settings,
    guard: Guard,
    /// Those of the settings.
    own: Vec<CertificateDer<'static>>,
    /// Whether the system has authorities.
    system: bool,
}

impl Clients {
    /// Reads the authorities, and makes the client that all downloads of a store share. Blocks.
    pub(super) fn open(settings: &Settings, guard: &Guard) -> Result<(Self, Client)> {
        // An error means that the program has installed a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut clients = Self {
            settings: settings.clone(),
            guard: guard.clone(),
            own: own_authorities(settings)?,
            system: true,
        };
        match clients.builder().build() {
            Ok(client) => Ok((clients, client)),
            Err(error) => {
                tracing::warn!(%error, "no system certificates found: https needs a CA file");
                clients.system = false;
                let none = clients.base(MOST_REDIRECTS);
                let none = none.tls_certs_only(std::iter::empty()).build();
                Ok((clients, none.map_err(|e| Error::Client(Arc::new(e)))?))
            }
        }
    }

    /// The builder of a client without a profile of its own.
    pub(super) fn builder(&self) -> ClientBuilder {
        self.trusting(self.base(MOST_REDIRECTS))
    }

    /// The client of a profile. Blocks.
    pub(super) fn for_profile(&self, profile: &Profile) -> Result<Client, String> {
        let mut builder = self.base(profile.max_redirects.unwrap_or(MOST_REDIRECTS));
        if let Some(url) = &profile.proxy {
            let proxy = reqwest::Proxy::all(url.clone());
            builder = builder.proxy(proxy.map_err(|_| "proxy is not usable")?);
        }
        builder = match &profile.tls {
            None => self.trusting(builder),
            Some(given) => builder.tls_backend_preconfigured(tls::config(self, given)?),
        };
        // What reqwest says may have the URL of the proxy.
        builder
            .build()
            .map_err(|_| "no client can be made of this transport".to_owned())
    }

    fn base(&self, most: usize) -> ClientBuilder {
        let redirects = self.guard.clone();
        let builder = Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(self.settings.connect_timeout)
            .referer(false)
            .dns_resolver(self.guard.clone())
            .redirect(Policy::custom(move |attempt| {
                follow(attempt, &redirects, most)
            }));
        match self.settings.proxy {
            Proxy::Environment => builder,
            Proxy::Direct => builder.no_proxy(),
        }
    }

    fn trusting(&self, builder: ClientBuilder) -> ClientBuilder {
        // They were read already, so each of them is one.
        let own = self
            .own
            .iter()
            .filter_map(|c| Certificate::from_der(c).ok());
        if self.system {
            builder.tls_certs_merge(own)
        } else {
            builder.tls_certs_only(own)
        }
    }
}

fn own_authorities(settings: &Settings) -> Result<Vec<CertificateDer<'static>>> {
    let Some(path) = &settings.ca_file else {
        return Ok(Vec::new());
    };
    let pem = std::fs::read(path).map_err(Error::io("read certificate authorities from", path))?;
    Certificate::from_pem_bundle(&pem).map_err(|e| Error::Client(Arc::new(e)))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let invalid =
        |error| Error::io("read certificate authorities from", path)(std::io::Error::other(error));
    found.map_err(invalid)
}

fn follow(attempt: Attempt<'_>, guard: &Guard, most: usize) -> reqwest::redirect::Action {
    let from_https = attempt
        .previous()
        .last()
        .is_some_and(|url| url.scheme() == "https");
    if attempt.previous().len() > most {
        attempt.error(format!("more than {most} redirects"))
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
