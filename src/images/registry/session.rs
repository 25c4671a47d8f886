//! Requests to one server of a registry, with what it demands for them.
//!
//! Invariant: credentials go to the registry they are for, and to the authorization service that it
//! names, never over http unless the registry itself is reached over http. Tokens live as long as
//! the session, which is one pull.
//! Failure: as of a download; 401 and 403 stay what they are.

use http::{HeaderMap, HeaderValue, StatusCode, header};
use registry_auth::{Demand, TokenService, bearer, demand, token_in};
use reqwest::Url;

use super::super::digest::Digest;
use super::super::download::{Call, Downloader, Small, Target};
use super::super::error::{Error, Result};
use super::super::translate::Source;
use super::super::unpack::Shape;
use super::Wanted;
use super::credentials::Credentials;
use super::hosts::Endpoint;
use super::manifest::Blob;
use super::place::Place;

/// Longest reply of an authorization service: tokens are a few KiB.
const TOKEN: usize = 256 << 10;
/// Name of this program for authorization services.
const CLIENT: &str = "vmlet";

/// One server, for one image.
#[derive(Debug)]
pub(super) struct Session<'a> {
    downloader: &'a Downloader,
    endpoint: &'a Endpoint,
    place: &'a Place,
    credentials: Option<&'a Credentials>,
    authorization: Option<HeaderValue>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        downloader: &'a Downloader,
        endpoint: &'a Endpoint,
        wanted: Wanted<'a>,
    ) -> Self {
        let Wanted { place, credentials } = wanted;
        // A mirror gets those that name it, and no others.
        let named = |given: &&Credentials| {
            if endpoint.is_registry {
                given.are_for(place.host())
            } else {
                !given.server_address.is_empty() && given.are_for(authority(&endpoint.base))
            }
        };
        let credentials = credentials.filter(named);
        let token = credentials.map(|given| given.registry_token.as_str());
        let token = token.filter(|token| !token.is_empty());
        Self {
            downloader,
            endpoint,
            place,
            credentials,
            authorization: token.and_then(bearer),
        }
    }

    /// The reply to a request for `path` below the repository, authorized where that is demanded.
    pub(super) async fn get(
        &mut self,
        path: &str,
        headers: HeaderMap,
        limit: usize,
    ) -> Result<Vec<u8>> {
        let target = self.target(path)?;
        let call = Call {
            headers,
            form: None,
            limit,
        };
        let mut reply = self.downloader.call(&target, &call).await?;
        if reply.status == StatusCode::UNAUTHORIZED {
            self.authorize(&target, &reply).await?;
            reply = self.downloader.call(&self.target(path)?, &call).await?;
        }
        match reply.status {
            StatusCode::OK => Ok(reply.body),
            status => Err(target.refused(status)),
        }
    }

    /// What the server gave for the requests so far.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        self.authorization.clone()
    }

    /// Takes up the authorization of an earlier session with the same server.
    pub(super) fn resume(&mut self, authorization: Option<HeaderValue>) {
        self.authorization = authorization;
    }

    /// Where a blob is; with the authorization of earlier requests.
    pub(super) fn blob(&self, blob: &Blob) -> Result<Target> {
        Ok(Target {
            is_disk: blob.shape == Shape::Disk,
            ..self.target(&blob_path(blob.digest))?
        })
    }

    /// Gets a new authorization for a blob: an earlier one may have ended.
    pub(super) async fn authorize_blob(&mut self, blob: &Blob) -> Result<()> {
        self.authorization = None;
        let target = self.blob(blob)?;
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_static("bytes=0-0"));
        let call = Call {
            headers,
            form: None,
            limit: TOKEN,
        };
        // A server that knows no ranges sends more than such a reply may have: it demands nothing.
        match self.downloader.call(&target, &call).await {
            Ok(reply) if reply.status == StatusCode::UNAUTHORIZED => {
                self.authorize(&target, &reply).await
            }
            Ok(_) | Err(Error::Reply { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn target(&self, path: &str) -> Result<Target> {
        let repository = self.place.repository();
        let url = self.endpoint.base.join(&format!("{repository}/{path}"));
        let mut url = url.map_err(|_| self.content("its name makes no URL"))?;
        let registry = self.place.host();
        if !self.endpoint.is_registry && authority(&url) != registry {
            url.query_pairs_mut().append_pair("ns", registry);
        }
        let mut headers = self.endpoint.headers.clone();
        if let Some(authorization) = &self.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        Ok(Target {
            source: Source::from_url(url),
            timeout: None,
            client: self.endpoint.client.clone(),
            headers,
            is_disk: false,
        })
    }

    /// Meets what the server demands in its refusal.
    async fn authorize(&mut self, target: &Target, refusal: &Small) -> Result<()> {
        let unauthorized = || target.refused(StatusCode::UNAUTHORIZED);
        let demand = demand(&refusal.headers).ok_or_else(unauthorized)?;
        self.authorization = match demand {
            Demand::Password => {
                let basic = self.credentials.and_then(Credentials::basic);
                Some(basic.ok_or_else(unauthorized)?)
            }
            Demand::Token(service) => Some(self.token(&service).await?),
        };
        Ok(())
    }

    async fn token(&self, service: &TokenService) -> Result<HeaderValue> {
        let encrypted = self.endpoint.base.scheme() == "https";
        if encrypted && service.is_plain() {
            return Err(self.content("its authorization service has no encryption"));
        }
        let identity = self.credentials.map(|given| given.identity_token.as_str());
        let identity = identity.filter(|token| !token.is_empty());
        // For servers that name none.
        let own = || format!("repository:{}:pull", self.place.repository());
        let scope = service.scope.clone().unwrap_or_else(own);
        let mut headers = HeaderMap::new();
        let mut url = service.realm.clone();
        let form = identity.map(|token| service.exchange(CLIENT, &scope, token));
        if form.is_none() {
            url = service.request(&scope);
            if let Some(basic) = self.credentials.and_then(Credentials::basic) {
                headers.insert(header::AUTHORIZATION, basic);
            }
        }
        let target = Target {
            source: Source::from_url(url),
            timeout: None,
            client: self.endpoint.client.clone(),
            headers: HeaderMap::new(),
            is_disk: false,
        };
        let call = Call {
            headers,
            form: form.as_deref(),
            limit: TOKEN,
        };
        let reply = self.downloader.call(&target, &call).await?;
        if reply.status != StatusCode::OK {
            return Err(target.refused(reply.status));
        }
        token_in(&reply.body).ok_or_else(|| self.content("its authorization service sent no token"))
    }

    fn content(&self, reason: &str) -> Error {
        Error::Content {
            location: self.place.to_string(),
            reason: reason.to_owned(),
        }
    }
}

pub(super) fn blob_path(digest: Digest) -> String {
    format!("blobs/{digest}")
}

/// Host and port of a URL.
fn authority(url: &Url) -> &str {
    let text = url.as_str();
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or_default()
}
