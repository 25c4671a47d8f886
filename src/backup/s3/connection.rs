//! How the server of a bucket is reached, and the signatures of requests.
//!
//! Invariant: no redirect is followed, and only the authorities that the settings name are trusted, where they name some.
//! Failure: a sentence, with the setting or the file that is to be corrected.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::{Certificate, Url};
use rusty_s3::{Bucket, Credentials, UrlStyle, signing};

use super::call::Call;
use super::{Settings, Style};

/// A signature is worth nothing after this: as much as clocks may differ.
const VALID: Duration = Duration::from_secs(900);

/// Time to connect.
const CONNECT: Duration = Duration::from_secs(10);

const USER_AGENT: &str = concat!("vmlet/", env!("CARGO_PKG_VERSION"));

/// A client of the server.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) http: reqwest::Client,
    bucket: Bucket,
}

impl Connection {
    /// Blocks.
    pub(super) fn new(settings: &Settings) -> Result<Self, String> {
        // An error means that the program has installed a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let style = match settings.style {
            Style::Path => UrlStyle::Path,
            Style::Host => UrlStyle::VirtualHost,
        };
        let bucket = settings.bucket.clone();
        let bucket = Bucket::new(
            settings.endpoint.clone(),
            style,
            bucket,
            settings.region.clone(),
        );
        let bucket = bucket.map_err(|e| format!("its URL cannot be used: {e}"))?;
        let mut builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT)
            .timeout(settings.deadline)
            .referer(false)
            .http1_only()
            .redirect(reqwest::redirect::Policy::none());
        if let Some(file) = &settings.ca {
            let unusable = |e: &dyn std::fmt::Display| {
                format!("certificate authorities in {}: {e}", file.display())
            };
            let pem = std::fs::read(file).map_err(|e| unusable(&e))?;
            let all = Certificate::from_pem_bundle(&pem).map_err(|e| unusable(&e))?;
            builder = builder.tls_certs_only(all);
        }
        let http = builder.build().map_err(|e| crate::one_line(&e))?;
        Ok(Self { http, bucket })
    }

    /// The URL of a request, with a signature.
    pub(super) fn signed(&self, call: &Call<'_>, credentials: &Credentials) -> Url {
        let url = match call.key {
            "" => self.bucket.base_url().clone(),
            key => self.bucket.object_url(key),
        };
        let mut query: Vec<_> = call
            .query
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        query.sort_unstable();
        signing::sign(
            &Timestamp::now(),
            call.method,
            url,
            credentials.key(),
            credentials.secret(),
            credentials.token(),
            self.bucket.region(),
            VALID.as_secs(),
            query.into_iter(),
            std::iter::empty(),
        )
    }
}
